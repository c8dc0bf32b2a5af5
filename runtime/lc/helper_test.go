package lc_test

// helperArg makes the test binary a second process that uses an engine.
const helperArg = "engine-helper"

func helper([]string) int { return 0 }
