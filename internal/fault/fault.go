// Package fault marks the places where an operation can be interrupted, so that
// tests can make it fail, hang or kill the process just there. In a release build
// Point.At is an empty function that the compiler removes; the points are live only with
// the build tag "faults".
//
// A package declares its points as variables, in its faults.go, and reaches them by At:
//
//	var faultRunRecorded = fault.New("pod.run.recorded")
//	…
//	if err := faultRunRecorded.At(ctx); err != nil {
//
// A program built with the tag prints the points that are linked into it, and exits, when
// CORACLE_FAULTS is "list": tests ask the program which points there are.
//
// Points are armed by the environment variable CORACLE_FAULTS, a comma-separated
// list of NAME=ACTION:
//
//	pod.run.network=error          At returns ErrInjected
//	pod.start.created=kill         the process kills itself with SIGKILL
//	image.pull.layer=hang          At blocks until its context ends
//	pod.stop.killed=2*error        only the second time the point is reached
//
// A file named by CORACLE_FAULTS_FILE, read at each point, arms points in a running
// process in the same notation.
package fault

import "errors"

// Point is a named place between two side effects. The name begins with the package's.
type Point string

// ErrInjected is what an armed point with the action "error" returns.
var ErrInjected = errors.New("injected fault")
