class PlacementGroupSchedulingStrategy:
    def __init__(self, group, index):
        pass
