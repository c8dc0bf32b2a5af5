package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/internal/rawfd"
)

// A container's streams are FIFOs of the host's, which CRIU cannot find from inside of the
// container. Its configuration file, which runc's annotation names, tells it: at a checkpoint
// that they are external, and at a restore which descriptor takes the place of each. What
// they were called is kept with the images.
const (
	criuAnnotation = "org.criu.config"
	criuConfigName = "criu.conf"    // in the bundle
	streamsName    = "streams.json" // next to CRIU's images
)

// criuName is the form of CRIU's names of external files: whatever else a checkpoint's file
// has in it must not become CRIU's configuration.
var criuName = regexp.MustCompile(`^file\[[0-9a-f]{1,16}:[0-9a-f]{1,16}\]$`)

// streamIDs are CRIU's names of a container's streams, by the descriptor that they were.
type streamIDs map[int]string

// Checkpoint saves the processes of a container below a directory, and lets them go on
// unless the options say otherwise.
func (s *Service) Checkpoint(ctx context.Context, r *task.CheckpointTaskRequest) (*emptypb.Empty, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %w", err)
	}
	opts, err := checkpointOptions(r)
	if err != nil {
		return nil, fmt.Errorf("checkpoint container %s: %w", r.ID, err)
	}
	if err := c.checkpoint(ctx, opts); err != nil {
		return nil, fmt.Errorf("checkpoint container %s: %w", r.ID, err)
	}
	return &emptypb.Empty{}, nil
}

func checkpointOptions(r *task.CheckpointTaskRequest) (runtime.CheckpointOptions, error) {
	out := runtime.CheckpointOptions{ImageOptions: runtime.ImageOptions{ImageDir: r.Path}, LeaveRunning: true, StatusFD: -1}
	if r.Options != nil {
		var o options.CheckpointOptions
		if name := lastElement(r.Options.TypeUrl); name != string(o.ProtoReflect().Descriptor().FullName()) {
			return out, fmt.Errorf("%w: options of type %q", errInvalid, name)
		}
		if err := proto.Unmarshal(r.Options.Value, &o); err != nil {
			return out, fmt.Errorf("%w: options: %w", errInvalid, err)
		}
		out.LeaveRunning = !o.Exit
		out.TCPEstablished, out.ExternalUnixSockets, out.FileLocks, out.ShellJob = o.OpenTcp, o.ExternalUnixSockets, o.FileLocks, o.Terminal
		out.CgroupMode, out.WorkDir = o.CgroupsMode, o.WorkPath
		if o.ImagePath != "" {
			out.ImageDir = o.ImagePath
		}
	}
	if !filepath.IsAbs(out.ImageDir) {
		return out, fmt.Errorf("%w: directory %q of the images is not an absolute path", errInvalid, out.ImageDir)
	}
	return out, nil
}

func (c *container) checkpoint(ctx context.Context, opts runtime.CheckpointOptions) error {
	c.op.Lock()
	defer c.op.Unlock()
	engine, err := c.alive()
	if err != nil {
		return err
	}
	saver, ok := engine.(runtime.Checkpointer)
	if !ok {
		return fmt.Errorf("%w: its runtime cannot", errUnimplemented)
	}
	ids, err := c.stdio.criuIDs()
	if err != nil {
		return err
	}
	var conf bytes.Buffer
	for _, fd := range slices.Sorted(maps.Keys(ids)) {
		fmt.Fprintf(&conf, "external %s\n", ids[fd])
	}
	bundle := c.record().Bundle
	if err := atomicfile.Write(filepath.Join(bundle, criuConfigName), conf.Bytes(), 0o600); err != nil {
		return err
	}
	if err := nameCRIUConfig(bundle); err != nil {
		return err
	}
	if err := os.MkdirAll(opts.ImageDir, 0o700); err != nil {
		return err
	}
	b, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(opts.ImageDir, streamsName), b, 0o600); err != nil {
		return err
	}
	return saver.Checkpoint(ctx, opts)
}

// nameCRIUConfig puts the annotation into the bundle's configuration, by which the engine
// checkpoints.
func nameCRIUConfig(bundle string) error {
	spec, err := runtime.LoadSpec(bundle)
	if err != nil {
		return err
	}
	if !withCRIUConfig(spec, bundle) {
		return nil
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(bundle, "config.json"), b, 0o600)
}

// withCRIUConfig sets the annotation, and says whether it was missing.
func withCRIUConfig(spec *specs.Spec, bundle string) bool {
	path := filepath.Join(bundle, criuConfigName)
	if spec.Annotations[criuAnnotation] == path {
		return false
	}
	spec.Annotations = maps.Clone(spec.Annotations)
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	spec.Annotations[criuAnnotation] = path
	return true
}

// criuIDs names the FIFOs that init got; a terminal is CRIU's own affair.
func (s *stdio) criuIDs() (streamIDs, error) {
	ids := streamIDs{}
	if s.c.rec.Terminal {
		return ids, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	files := map[int]*os.File{0: s.stdin}
	for i, p := range s.pumps {
		files[i+1] = p.Pipe()
	}
	for fd, f := range files {
		if f == nil {
			continue
		}
		id, err := criuID(f)
		if err != nil {
			return nil, err
		}
		ids[fd] = id
	}
	return ids, nil
}

// criuID is how CRIU calls an open file that it cannot reach: by its mount and inode.
func criuID(f *os.File) (id string, err error) {
	rawfd.With(f, func(fd int) {
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err != nil {
			return
		}
		var info []byte
		if info, err = os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd)); err != nil {
			return
		}
		_, rest, ok := bytes.Cut(info, []byte("mnt_id:"))
		if !ok {
			err = errors.New("fdinfo without mnt_id")
			return
		}
		var mount int
		if _, err = fmt.Sscan(string(rest), &mount); err == nil {
			id = fmt.Sprintf("file[%x:%x]", mount, st.Ino)
		}
	})
	if err != nil {
		return "", fmt.Errorf("name of stream %s for CRIU: %w", f.Name(), err)
	}
	return id, nil
}

// maxStreams bounds what is read of a checkpoint's streamsName, which may be anybody's.
const maxStreams = 4 << 10

// readStreams reads streamsName. Where it is a FIFO or a link to something else it is refused:
// opening must not wait, nor lead out of the checkpoint.
func readStreams(images string) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(images, streamsName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", streamsName)
	}
	return io.ReadAll(io.LimitReader(f, maxStreams))
}

// restore makes a container from what checkpoint has saved. Its processes go on at once.
func (c *container) restore(ctx context.Context, spec *specs.Spec, opts runtime.CreateOptions, images string) (runtime.Container, error) {
	restorer, ok := c.s.cfg.Engine.(runtime.Restorer)
	if !ok {
		return nil, fmt.Errorf("%w: the engine cannot restore", errUnimplemented)
	}
	if !filepath.IsAbs(images) {
		return nil, fmt.Errorf("%w: checkpoint %q is not an absolute path", errInvalid, images)
	}
	b, err := readStreams(images)
	if err != nil {
		return nil, fmt.Errorf("%w: checkpoint: %w", errInvalid, err)
	}
	var ids streamIDs
	if err := json.Unmarshal(b, &ids); err != nil {
		return nil, fmt.Errorf("%w: checkpoint: %s: %w", errInvalid, streamsName, err)
	}
	var conf bytes.Buffer
	for _, fd := range slices.Sorted(maps.Keys(ids)) {
		if fd < 0 || fd > 2 || !criuName.MatchString(ids[fd]) {
			return nil, fmt.Errorf("%w: checkpoint: %s names %q as descriptor %d", errInvalid, streamsName, ids[fd], fd)
		}
		// libcontainer gives CRIU the new streams as its own.
		fmt.Fprintf(&conf, "inherit-fd fd[%d]:%s\n", fd, ids[fd])
	}
	done, err := readableOnce(filepath.Join(opts.Bundle, criuConfigName), conf.Bytes())
	if err != nil {
		return nil, err
	}
	defer done()
	withCRIUConfig(spec, opts.Bundle)
	return restorer.Restore(ctx, c.id, spec, opts,
		runtime.RestoreOptions{ImageOptions: runtime.ImageOptions{ImageDir: images, WorkDir: c.dir}})
}

// readableOnce makes a file that is empty from its second opening on, until done is called. criu(8)
// 3.17 reads its configuration twice, and fails when it has been told twice to inherit a
// descriptor: it closes it at the first.
func readableOnce(path string, text []byte) (done func(), err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	done = func() {
		os.Remove(path)
		r.Close()
	}
	// Some hundred bytes: a pipe takes them without a reader. Without a writer, it has an end.
	_, err = w.Write(text)
	err = errors.Join(err, w.Close())
	if err == nil {
		rawfd.With(r, func(fd int) { err = os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), path) })
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}
