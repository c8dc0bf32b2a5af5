package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
)

// command is one execution of an OCI runtime.
type command struct {
	path, root string
	systemd    bool
	dir        string // for its files, removed by close
	// stdio are the streams; those that are nil are empty, or, of an output, what listen makes.
	stdio runtime.Stdio
	// starts means that the command starts a process, which gets the streams.
	starts bool
	self   base.Process // of the last execution
}

// newCommand makes the directory for a command's files in the container's own.
func (c *container) newCommand() (*command, error) {
	dir, err := os.MkdirTemp(c.Dir(), "run-")
	if err != nil {
		return nil, err
	}
	return &command{path: c.own.Command, root: c.engine.rootOf(c.own.Command), systemd: c.own.SystemdCgroup, dir: dir}, nil
}

func (k *command) close() { os.RemoveAll(k.dir) }

func (k *command) file(name string) string { return filepath.Join(k.dir, name) }

// run executes the command to its end. Ended by ctx, or with this program, it leaves what it
// had started.
func (k *command) run(ctx context.Context, args ...string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	global := []string{"--root", k.root, "--log", k.file("log"), "--log-format", "json"}
	if k.systemd {
		global = append(global, "--systemd-cgroup")
	}
	cmd := exec.CommandContext(ctx, k.path, append(global, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.ExtraFiles = k.stdio.Files
	listen := k.listen
	if k.starts {
		listen = keepLittle
	}
	said, err := listen()
	if err != nil {
		return nil, err
	}
	defer said.close()
	cmd.Stdout, cmd.Stderr = said.stdout, said.stderr
	stdin := k.stdio.Stdin
	if stdin == nil {
		if stdin, err = emptyPipe(); err != nil {
			return nil, err
		}
		defer stdin.Close()
	}
	cmd.Stdin = stdin
	if f := k.stdio.Stdout; f != nil {
		cmd.Stdout = f
	}
	if f := k.stdio.Stderr; f != nil {
		cmd.Stderr = f
	}
	// The signal comes when the thread that has forked ends, not the program.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	if err = cmd.Start(); err == nil {
		k.self, _ = base.Identify(cmd.Process.Pid) // it is there until it is waited for
		err = cmd.Wait()
	}
	if err == nil && k.starts {
		return nil, nil // the process may have written by now, and made the file as long as it likes
	}
	out, rerr := said.read()
	if err == nil && rerr != nil {
		return nil, fmt.Errorf("%s %s: %w", filepath.Base(k.path), verb(args), rerr)
	}
	if err == nil {
		return out, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s %s: %w", filepath.Base(k.path), verb(args), context.Cause(ctx))
	}
	return nil, fmt.Errorf("%s %s: %w", filepath.Base(k.path), verb(args), k.explain(err, out))
}

// emptyPipe has nothing to read, as /dev/null, which is not given away: until its pull request 1847
// crun makes all three streams the property of the process's user, and the host has one /dev/null.
func emptyPipe() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return r, w.Close()
}

// verb is what a command was to do.
func verb(args []string) string { return args[0] }

// explain finds the sentence in which a command says why it has failed: the last error of its
// log, or what it has written.
func (k *command) explain(err error, said []byte) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err // it could not be executed
	}
	log, _ := readSmall(k.file("log"))
	if msg := lastError(log); msg != "" {
		return errors.New(msg)
	}
	if text := strings.TrimSpace(string(said[:min(len(said), maxSmall)])); text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// lastError is the message of the last line of a log, in JSON, that is an error.
func lastError(log []byte) string {
	last := ""
	for line := range bytes.Lines(log) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") && entry.Msg != "" {
			last = entry.Msg
		}
	}
	return strings.TrimSpace(last)
}

// maxSmall bounds what is read of the files that a command writes, and what is told of its words.
const maxSmall = 64 << 10

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSmall))
}
