package client

// KillTimeout is killTimeout.
const KillTimeout = killTimeout
