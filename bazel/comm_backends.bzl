"""For tests of several ranks that are to run over each backend."""

# Suffix of the test's name -> what rank_threads takes from the environment.
COMM_BACKENDS = {
    "": {},
    "_over_gloo": {"QUARTET_TEST_BACKEND": "gloo"},
}
