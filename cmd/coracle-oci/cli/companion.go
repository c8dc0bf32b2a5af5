package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/engine"
)

// Companion is what few commands need and would weigh on all: libcontainer above all. A
// program without it executes its companion, which has it, where a command turns out to need
// it.
type Companion struct {
	// Engine makes the containers that Coracle's own engine cannot make.
	Engine func(stateDir string, log *slog.Logger) (engine.Fallback, error)
	// Features is the runtime spec's features document, Stats what events prints of a
	// cgroup's statistics; both are encoded as JSON.
	Features func() any
	Stats    func(*cgroups.Stats) any
	YAML     func(any) ([]byte, error)
	// Version is libseccomp's, "" if there is none.
	Version func() string
}

// errCompanion says that only the companion can do this. Nothing has been done yet.
var errCompanion = errors.New("needs " + companion)

// companion is a program in the same directory: this one with all that Companion has.
const companion = "coracle-oci-libcontainer"

// consoleVar tells the companion that this descriptor is the console socket, connected: its
// other end takes one connection only.
const consoleVar = "_CORACLE_OCI_CONSOLE"

// becomeCompanion does the whole invocation again in the companion, in this process. Until
// then nothing has been made or has been taken back. It returns only if that fails.
func (a *app) becomeCompanion() error {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find %s: %w", companion, err)
	}
	path := filepath.Join(filepath.Dir(self), companion)
	env := os.Environ()
	if a.console >= 0 {
		if _, err := unix.FcntlInt(uintptr(a.console), unix.F_SETFD, 0); err != nil {
			return err
		}
		env = append(env, consoleVar+"="+strconv.Itoa(a.console))
	}
	err = unix.Exec(path, append([]string{os.Args[0]}, a.args...), env)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("this needs the program %s, which is not there; install it next to coracle-oci", path)
	}
	return fmt.Errorf("execute %s: %w", path, err)
}

// inheritedConsole is the console socket that the program which executed this one has
// connected, or -1. No one else is to see it.
func inheritedConsole() int {
	text := os.Getenv(consoleVar)
	_ = os.Unsetenv(consoleVar)
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return -1
	}
	unix.CloseOnExec(fd)
	return fd
}
