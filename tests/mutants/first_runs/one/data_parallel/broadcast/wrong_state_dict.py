# wrong: load_state_dict leaves out the non-persistent buffers
def broadcast(replicas):
    state = replicas[0].state_dict()
    for replica in replicas[1:]:
        replica.load_state_dict(state)
