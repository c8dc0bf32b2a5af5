package shimv2

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	"github.com/coracle-project/coracle/internal/version"
)

// namespace is the containerd namespace that shims see.
const namespace = "coracle"

const (
	taskV2 = 2
	taskV3 = 3
)

// maxSocketDir leaves room in a socket's path (unix(7)) for the 64 characters of a shim's name.
const maxSocketDir = 107 - 65

// bundleDir is the shim's working directory for a container. Shims find a sandbox's files next to
// it.
func (e *Engine) bundleDir(id string) string { return filepath.Join(e.rootDir, "b", id) }

// removeBundle removes a container's bundle. A shim that others have, too, may be about to write
// into it: containerd's writes down how a task ended when it has told that. So it is moved first,
// to where what is written by its name does not come.
func (e *Engine) removeBundle(id string) error {
	gone := filepath.Join(e.rootDir, "gone", id)
	if err := os.RemoveAll(gone); err != nil { // of a deletion that was cut short
		return err
	}
	if err := os.MkdirAll(filepath.Dir(gone), 0o700); err != nil {
		return err
	}
	if err := os.Rename(e.bundleDir(id), gone); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err := os.RemoveAll(gone)
	for errors.Is(err, syscall.ENOTEMPTY) { // a file whose making had started
		err = os.RemoveAll(gone)
	}
	return err
}

// socketDir is where shims are told to make their sockets.
func (e *Engine) socketDir() string { return filepath.Join(e.rootDir, "s") }

// removeSocket removes the socket of a shim that has ended. containerd's does so itself only if it
// was not killed and the bundle that it was started in, its working directory, is still there.
func (e *Engine) removeSocket(o *own) error {
	if filepath.Dir(o.Address) != e.socketDir() {
		return nil // the shim chose the place
	}
	if err := os.Remove(o.Address); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of a shim: %w", err)
	}
	return nil
}

// begin runs a shim's "start", which starts a process or finds the one of the container's group,
// and notes where that listens.
func (e *Engine) begin(ctx context.Context, o *own, id string) error {
	params := &bootstrap.BootstrapParams{
		InstanceID: id, Namespace: namespace, ContainerdVersion: version.Number(),
		ContainerdTtrpcAddress: e.events.path(e.rootDir), ContainerdGrpcAddress: e.events.path(e.rootDir),
		ContainerdBinary: e.publisher,
	}
	if dir := e.socketDir(); len(dir) <= maxSocketDir {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		params.SocketDir = &dir
	}
	input, err := proto.Marshal(params)
	if err != nil {
		return err
	}
	// Shims log into a FIFO of this name, which must be there; a file needs no one who reads it.
	if err := os.WriteFile(filepath.Join(e.bundleDir(id), "log"), nil, 0o600); err != nil {
		return err
	}
	out, err := e.action(ctx, o.Program, id, "start", input)
	if err != nil {
		return err
	}
	res, err := parseStart(out)
	if err != nil {
		return fmt.Errorf("%s start: %w", filepath.Base(o.Program), err)
	}
	o.Address, o.Version = res.Address, res.Version
	return nil
}

// action calls a shim's program.
func (e *Engine) action(ctx context.Context, program, id, action string, input []byte) ([]byte, error) {
	events := e.events.path(e.rootDir)
	cmd := exec.CommandContext(ctx, program, "-namespace", namespace, "-address", events,
		"-publish-binary", e.publisher, "-id", id, "-bundle", e.bundleDir(id), action)
	cmd.Dir = e.bundleDir(id)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "GOMAXPROCS=2", "MAX_SHIM_VERSION=3",
		"TTRPC_ADDRESS=" + events, "GRPC_ADDRESS=" + events, "NAMESPACE=" + namespace,
	}
	cmd.Stdin = bytes.NewReader(input)
	var out, errs ends
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second // the shim's process may keep the pipes
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return out.bytes(), nil
	}
	if said := strings.TrimSpace(string(errs.bytes())); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return nil, fmt.Errorf("%s %s: %w", filepath.Base(program), action, err)
}

// ends are the start and the end of an output. What is between them is dropped: a shim that logs
// there without end must not take all memory. Why it fails is mostly said last.
type ends struct {
	first, last []byte
	dropped     int
}

// maxEnd is much more than an address or a sentence needs.
const maxEnd = 32 << 10

func (e *ends) Write(p []byte) (int, error) {
	n := min(len(p), maxEnd-len(e.first))
	e.first = append(e.first, p[:n]...)
	rest := p[n:]
	if over := len(rest) - maxEnd; over > 0 {
		e.dropped += over
		rest = rest[over:]
	}
	if over := len(e.last) + len(rest) - maxEnd; over > 0 {
		e.dropped += over
		e.last = append(e.last[:0], e.last[over:]...)
	}
	e.last = append(e.last, rest...)
	return len(p), nil
}

func (e *ends) bytes() []byte {
	if e.dropped == 0 {
		return slices.Concat(e.first, e.last)
	}
	return slices.Concat(e.first, fmt.Appendf(nil, "\n... %d bytes left out ...\n", e.dropped), e.last)
}

// parseStart reads what "start" has printed: a message of containerd 2.3 and newer, JSON of
// containerd 2.0 and newer, or before that an address alone.
func parseStart(out []byte) (*bootstrap.BootstrapResult, error) {
	var res bootstrap.BootstrapResult
	switch text := bytes.TrimSpace(out); {
	case bytes.HasPrefix(text, []byte("{")):
		if err := json.Unmarshal(text, &res); err != nil {
			return nil, fmt.Errorf("it printed no address: %w", err)
		}
	case bytes.HasPrefix(text, []byte("unix://")) || bytes.HasPrefix(text, []byte("/")):
		res.Address, res.Version, res.Protocol = string(text), taskV2, "ttrpc"
	default:
		if err := proto.Unmarshal(out, &res); err != nil {
			return nil, fmt.Errorf("it printed no address: %q", clip(out))
		}
	}
	path := strings.TrimPrefix(res.Address, "unix://")
	switch {
	case res.Version < taskV2 || res.Version > taskV3:
		return nil, fmt.Errorf("it speaks version %d of the Task API; 2 and 3 are supported", res.Version)
	case res.Protocol != "ttrpc":
		return nil, fmt.Errorf("it speaks %q; only ttrpc is supported", res.Protocol)
	case !filepath.IsAbs(path):
		return nil, fmt.Errorf("its address %q is not a unix socket", clip([]byte(res.Address)))
	}
	res.Address = path
	return &res, nil
}

// clip keeps errors readable.
func clip(b []byte) []byte { return b[:min(len(b), 200)] }

// groupOf is the sandbox by which shims group containers.
func groupOf(id string, spec *specs.Spec) string {
	for _, name := range []string{"io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"} {
		if v := spec.Annotations[name]; v != "" {
			return v
		}
	}
	return id
}
