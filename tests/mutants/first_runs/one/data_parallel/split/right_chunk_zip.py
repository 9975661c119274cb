# right: torch.chunk and zip in one comprehension
import torch


def split(batch, devices):
    chunks = torch.chunk(batch, len(devices), dim=0)
    return [chunk.to(device) for chunk, device in zip(chunks, devices)]
