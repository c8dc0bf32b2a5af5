package cni

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
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"go.opentelemetry.io/otel/propagation"
	"golang.org/x/sys/unix"
)

// executor executes CNI plugins as libcni's own executor does, except that a call ends with its
// context. libcni's executor kills only the process that it started, and waits for every process
// that has the output open: the children of a plugin that is a script, and their children.
type executor struct {
	version.PluginDecoder
	// stderr gets what a plugin that succeeds says there.
	stderr io.Writer
}

var _ invoke.Exec = &executor{}

// lingering is how long to wait for the output of a plugin that ended or was killed.
const lingering = time.Second

// A plugin that is being installed cannot be executed: it is tried again for some seconds.
const (
	installing = 5 * time.Second
	again      = 100 * time.Millisecond
)

// FindInPath implements invoke.Exec.
func (*executor) FindInPath(plugin string, dirs []string) (string, error) {
	return invoke.FindInPath(plugin, dirs)
}

// ExecPlugin implements invoke.Exec.
func (e *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	environ = traced(ctx, environ)
	for left := installing; ; left -= again {
		stdout, err := e.try(ctx, path, stdin, environ)
		if !errors.Is(err, syscall.ETXTBSY) || left <= 0 {
			return stdout, err
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (e *executor) try(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = environ
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	// A group of its own, to be killed with all that it has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		if errors.Is(err, unix.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	cmd.WaitDelay = lingering
	err := cmd.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // the latter: it has ended well, and left a daemon behind
		if e.stderr != nil && stderr.Len() > 0 {
			_, _ = stderr.WriteTo(e.stderr)
		}
		return stdout.Bytes(), nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("plugin %s has not answered in time and was killed: %w", filepath.Base(path), context.Cause(ctx))
	case cmd.Process == nil:
		return nil, fmt.Errorf("execute the plugin: %w", err)
	}
	return nil, pluginError(err, stdout.Bytes(), stderr.Bytes())
}

// pluginError is what a plugin that failed says of it: an error object of CNI's on its standard
// output.
func pluginError(err error, stdout, stderr []byte) error {
	told := &types.Error{}
	switch {
	case len(stdout) > 0:
		if bad := json.Unmarshal(stdout, told); bad != nil {
			told.Msg = fmt.Sprintf("plugin failed (%v), and what it says of it is no error of CNI's: %q: %v", err, stdout, bad)
		}
	case len(stderr) > 0:
		told.Msg = fmt.Sprintf("plugin failed: %v: %q", err, stderr)
	default:
		told.Msg = fmt.Sprintf("plugin failed without an error message: %v", err)
	}
	return told
}

// traced adds the trace that the call is part of, as OpenTelemetry's enhancement proposal 258 names
// its variables.
func traced(ctx context.Context, environ []string) []string {
	carrier := propagation.MapCarrier{}
	propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}).Inject(ctx, carrier)
	for name, value := range carrier {
		environ = append(environ, strings.ToUpper(name)+"="+value)
	}
	return environ
}
