# wrong: gathers on the GPU of the first output and ignores device
import torch


def gather(outputs, device):
    target = outputs[0].device
    result = outputs[0]
    for output in outputs[1:]:
        result = torch.cat((result, output.to(target)))
    return result
