// Package fault marks the places where an operation can be interrupted, so that
// tests can make it fail, hang or kill the process just there. In a release build
// Point.At is an empty function that the compiler removes; the points are live only with
// the build tag "faults".
//
// A package declares its points as variables in its faults.go, and calls At at each point:
//
//	var faultRunRecorded = fault.New("pod.run.recorded")
//	…
//	if err := faultRunRecorded.At(ctx); err != nil {
//
// If CORACLE_FAULTS is "list", a program built with the tag prints the points that are linked into
// it, and exits. Tests use that to find the points.
//
// Points are armed by the environment variable CORACLE_FAULTS, a comma-separated
// list of NAME=ACTION:
//
//	pod.run.network=error          At returns ErrInjected
//	pod.start.started=kill         the process kills itself with SIGKILL
//	pod.start.started=kill:17+23   it kills these processes, itself last if it is one of them
//	image.pull.layer=hang          At blocks until its context ends
//	pod.run.ready=fill:/run/x      it fills the file system of that directory, with a file
//	                               named FillName, and goes on
//	pod.run.ready=emfile           it lowers its limit of open files, so that no other can be opened,
//	                               and goes on
//	pod.stop.killed=2*error        only the second time the point is reached
//
// A file named by CORACLE_FAULTS_FILE, read at each point, arms points in a running
// process in the same notation. In such a file,
//
//	pod.run.network=once*error     happens once, in the first process at the point
//
// That process renames the file: it adds TakenSuffix to the name. After a full file system or a
// lowered limit it renames it again, with DoneSuffix instead: what undoes the fault must wait for
// that. A hang armed by a file ends when the file no longer arms it or, with once, when the renamed
// file is gone.
//
// A file named by CORACLE_FAULTS_REACHED gets a line for each point that is reached, before
// anything happens there: the point's name, and the fault that is about to happen, if any.
package fault

import (
	"errors"
	"os"
)

// Point is a named place between two side effects. Its name starts with the name of the package.
type Point string

// ErrInjected is what an armed point with the action "error" returns.
var ErrInjected = errors.New("injected fault")

const (
	// FillName is the name of the file that fills a file system.
	FillName = "coracle-fault-fill"
	// TakenSuffix is appended to the name of a file when its fault, armed to happen once, happens.
	TakenSuffix = ".taken"
	// DoneSuffix replaces TakenSuffix when a file system is full, or a limit lowered.
	DoneSuffix = ".done"
)

const (
	fileVar    = "CORACLE_FAULTS_FILE"
	reachedVar = "CORACLE_FAULTS_REACHED"
)

// Environ returns the variables that a program passes to programs that it starts: the names of the
// files. The list in CORACLE_FAULTS applies to one process only. Environ is the same in all builds:
// a test without the tag starts programs that have it.
func Environ() []string {
	var env []string
	for _, name := range []string{fileVar, reachedVar} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
