class _Group:
    def wait(self, _):
        return True


def placement_group(bundles, strategy):
    return _Group()


def remove_placement_group(group):
    pass
