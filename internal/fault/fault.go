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
//	pod.start.created=kill:17+23   it kills these processes, itself last if it is one of them
//	image.pull.layer=hang          At blocks until its context ends
//	pod.run.ready=fill:/run/x      it fills the file system of that directory, with a file
//	                               named FillName, and goes on
//	pod.run.ready=emfile           it lowers its limit of open files, so that no other can be opened,
//	                               and goes on
//	pod.stop.killed=2*error        only the second time the point is reached
//
// A file named by CORACLE_FAULTS_FILE, read at each point, arms points in a running
// process in the same notation. There
//
//	pod.run.network=once*error     happens once, whichever process is the first at the point
//
// That process renames the file: TakenSuffix is added to its name. A hang that a file has armed
// ends when the file does not say so any more, or, with once, when the renamed file is gone.
//
// A file named by CORACLE_FAULTS_REACHED gets a line for each point that is reached, before
// anything happens there: its name, and what is about to happen, if anything.
package fault

import (
	"errors"
	"os"
)

// Point is a named place between two side effects. The name begins with the package's.
type Point string

// ErrInjected is what an armed point with the action "error" returns.
var ErrInjected = errors.New("injected fault")

const (
	// FillName is the file that takes all room of a file system.
	FillName = "coracle-fault-fill"
	// TakenSuffix is what the name of a file gets that has armed a fault which happens once.
	TakenSuffix = ".taken"
)

const (
	fileVar    = "CORACLE_FAULTS_FILE"
	reachedVar = "CORACLE_FAULTS_REACHED"
)

// Environ is what a program gives to those that it starts: the files. The list in CORACLE_FAULTS is
// for one process. It is the same in all builds: a test without the tag starts programs with it.
func Environ() []string {
	var env []string
	for _, name := range []string{fileVar, reachedVar} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
