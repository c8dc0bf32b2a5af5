package nodes

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// programs are what this program is besides a test. The value of an environment variable is their
// argument.
var programs = map[string]func(string) int{onceVar: once}

// onceVar names the directory of once.
const onceVar = "CORACLE_TEST_ONCE"

// once is what the container of a pod does that must not run twice at a time: it takes a lock in a
// directory that the pods of all nodes see, and holds it until it is told to end. The kernel gives
// the lock to one process, and takes it back when that is gone. What happened is in the file log.
func once(dir string) int {
	note := func(what string) {
		f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			_, _ = fmt.Fprintln(f, what, os.Getenv("POD_UID"), "on", os.Getenv("NODE"))
			_ = f.Close()
		}
	}
	told, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	defer func() { _ = lock.Close() }() // not before: it would end the lock
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		note("twice: " + err.Error())
		return 1
	}
	note("runs")
	<-told.Done()
	note("ends")
	return 0
}
