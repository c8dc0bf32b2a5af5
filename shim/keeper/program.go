package keeper

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ExitStay is the exit code of a program that must not be restarted before the next Supervise,
// because a restart cannot help: for example, a record has a newer version. It is EX_CONFIG of
// sysexits.h.
const ExitStay = 78

// Program is a program that the keeper restarts whenever it ends.
type Program struct {
	Name string
	Path string
	Args []string // including argv[0]
	Env  []string
	Log  *os.File // becomes its stdout and stderr
	// BoundLog makes the keeper empty Log before a start if it is larger than 8 MiB. The program
	// should limit its log earlier itself; this is for a program that fails before that.
	BoundLog bool
	// PID and PIDFD, if PIDFD is not nil, identify the process that already runs.
	PID   int
	PIDFD *os.File
}

// Supervise starts p and restarts it whenever it ends, until Forget. It returns p's pid, or 0 if p
// waits for its start.
//
// The command line, environment and log apply to the next start. A running program keeps running. A
// program that waits because it ends too often is started when its pause is over, or at once if its
// command line has changed. With PIDFD the process is adopted instead of started.
func (k *Keeper) Supervise(p Program) (int, error) {
	r := request{op: opSupervise, nargs: len(p.Args), nenv: len(p.Env), files: []*os.File{p.Log}}
	r.strings = append(append([]string{p.Name, p.Path}, p.Args...), p.Env...)
	if p.BoundLog {
		r.flags |= flagBoundLog
	}
	if p.PIDFD != nil {
		r.flags |= flagAdopt
		r.arg = uint32(p.PID)
		r.files = append(r.files, p.PIDFD)
	}
	pid, _, _, err := k.call(r)
	return int(pid), err
}

// Forget ends the supervision of a program. The program keeps running.
func (k *Keeper) Forget(name string) error {
	_, _, _, err := k.call(request{op: opForget, strings: []string{name}})
	return err
}

// Who returns the pid of a supervised program, 0 while it does not run.
func (k *Keeper) Who(name string) (int, error) {
	pid, _, _, err := k.call(request{op: opWho, strings: []string{name}})
	return int(pid), err
}

// State is the state of a supervised program.
type State uint32

// States of a program.
const (
	Running State = iota + 1
	// A Waiting program has ended and is started at Status.Next: at once, or within a second after
	// ten starts in ten seconds.
	Waiting
	// A Stayed program has exited with ExitStay. Only the next Supervise starts it.
	Stayed
)

func (s State) String() string {
	switch s {
	case Running:
		return "running"
	case Waiting:
		return "waiting"
	case Stayed:
		return "stayed"
	}
	return fmt.Sprintf("state %d", uint32(s))
}

// Status is what a keeper knows about a program. If the keeper is killed, the next one counts from
// 0.
type Status struct {
	State  State
	PID    int // 0 unless Running
	Starts int // by this keeper; reset by Forget, not by Supervise
	// Started is the time of the last start; zero if there was none, because the process was
	// adopted.
	Started time.Time
	Ends    int       // seen by this keeper
	Next    time.Time // of the next start, if Waiting
	// Exit is how the program last ended, if ExitKnown. The status of an adopted process is known
	// since Linux 6.15.
	Exit      syscall.WaitStatus
	ExitKnown bool
}

// Status returns what the keeper knows about a program. A keeper without FeatureStatus returns only
// State and PID.
func (k *Keeper) Status(name string) (Status, error) {
	if !k.Has(FeatureStatus) {
		pid, err := k.Who(name)
		if err != nil {
			return Status{}, err
		}
		s := Status{State: Waiting, PID: pid}
		if pid > 0 {
			s.State = Running
		}
		return s, nil
	}
	pid, body, _, err := k.call(request{op: opStatus, strings: []string{name}})
	if err != nil {
		return Status{}, err
	}
	return decodeStatus(int(pid), body, time.Now())
}

// decodeStatus decodes struct keeper_status of process/keeper.h. A newer keeper's status is longer.
func decodeStatus(pid int, b []byte, now time.Time) (Status, error) {
	if len(b) < 32 {
		return Status{}, fmt.Errorf("status of %d bytes from the keeper: %w", len(b), syscall.EBADMSG)
	}
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	ms := func(at int) time.Duration {
		return time.Duration(int64(binary.NativeEndian.Uint64(b[at:]))) * time.Millisecond
	}
	s := Status{State: State(u32(0)), PID: pid, Starts: int(u32(4)), Ends: int(u32(12))}
	if exit := int32(u32(8)); exit >= 0 {
		s.Exit, s.ExitKnown = syscall.WaitStatus(exit), true
	}
	if since := ms(16); since >= 0 {
		s.Started = now.Add(-since)
	}
	if next := ms(24); next >= 0 {
		s.Next = now.Add(next)
	}
	return s, nil
}
