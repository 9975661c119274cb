# wrong: chunk i goes to cuda:i and not to devices[i], seen only when devices are not in ascending order from 0
import torch


def split(batch, devices):
    result = []
    for i, chunk in enumerate(batch.chunk(len(devices))):
        result.append(chunk.to(torch.device("cuda", i)))
    return result
