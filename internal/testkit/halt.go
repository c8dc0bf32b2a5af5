package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Halt stops a process as a hang would, and returns when none of its threads runs any more: SIGSTOP
// is for one of them to take, and until that has its turn on a busy machine, the others go on.
func Halt(pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("halt %d: %w", pid, err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		halted, err := allHalted(pid)
		if err != nil || halted {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("process %d still runs %v after SIGSTOP", pid, patience)
		}
	}
}

func allHalted(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false, err
	}
	if len(threads) == 0 {
		return false, fmt.Errorf("process %d has ended", pid)
	}
	for _, thread := range threads {
		raw, err := os.ReadFile(thread)
		if _, after, _ := strings.Cut(string(raw), ") "); err == nil && !strings.HasPrefix(after, "T") {
			return false, nil
		}
	}
	return true, nil
}
