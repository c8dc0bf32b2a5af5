// Package podinit is the init process of pods with a shared PID namespace: importing
// it makes a program that is started with argv[0] "/coracle-pod-init" reap orphans for
// ever, and exit with 0 on SIGTERM or SIGINT from outside its PID namespace, before the Go
// runtime starts. The containers of the pod can neither end it nor make anything of it:
// see podinit.c.
package podinit

// #cgo CFLAGS: -O2 -Wall -Wextra
import "C"
