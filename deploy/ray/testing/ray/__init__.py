"""Stands in for Ray in tests of launch.py: actors are objects of this process, and each of their calls has a thread."""
import concurrent.futures
import threading

from ray import exceptions, util  # noqa: F401


def init(**_):
    pass


def nodes():
    return []


def get_gpu_ids():
    return []


class _Method:
    def __init__(self, method):
        self.method = method

    def remote(self, *arguments, **named):
        future = concurrent.futures.Future()

        def run():
            try:
                future.set_result(self.method(*arguments, **named))
            except Exception as error:  # whoever gets it raises it
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future


class _Actor:
    def __init__(self, object):
        self.object = object

    def __getattr__(self, name):
        return _Method(getattr(self.object, name))


class _Class:
    def __init__(self, cls):
        self.cls = cls

    def options(self, **_):
        return self

    def remote(self, *arguments):
        return _Actor(self.cls(*arguments))


def remote(**_):
    return _Class


def get(futures):
    return [future.result() for future in futures] if isinstance(futures, list) else futures.result()


def wait(futures, num_returns=1, timeout=None):
    when = concurrent.futures.FIRST_COMPLETED if num_returns == 1 else concurrent.futures.ALL_COMPLETED
    done, left = concurrent.futures.wait(futures, timeout, when)
    return list(done), list(left)
