"""For tests whose ranks are threads, which share the machine's cores."""

TWO_QUIET_THREADS = {
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
}
