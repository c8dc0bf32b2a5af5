// Package process is the keeper process itself: importing it makes a program that is
// started with argv[0] "coracle-keeper" become the keeper before the Go runtime
// starts. Package keeper is how to talk to it.
package process

// #cgo CFLAGS: -O2 -Wall -Wextra
import "C"
