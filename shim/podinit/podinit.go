// Package podinit is the init process of pods with a shared PID namespace: importing
// it makes a program that is started with argv[0] "/coracle-pod-init" reap orphans for
// ever, and exit with 0 on SIGTERM or SIGINT, before the Go runtime begins.
package podinit

// #cgo CFLAGS: -O2 -Wall -Wextra
import "C"
