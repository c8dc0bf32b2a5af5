package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/integration/bench/quiet"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pullers is how many images of a workload are pulled at the same time.
const pullers = 8

// creates is how many containers are made of a workload's first image.
const creates = 20

// benchmarkImages measures pulling and unpacking.
func benchmarkImages(ctx context.Context, o options) error {
	return withTargets(ctx, o, func(targets []*target) error {
		work, err := publishImages(ctx, o.tiny)
		if err != nil {
			return err
		}
		rep := reportOf(targets, o, page.Images, map[string]any{"runs": o.runs, "pullers": pullers, "creates": creates})
		for _, w := range work {
			if err := inTurns(targets, o.runs, func(_ int, t *target) error { return t.measurePull(ctx, w) }); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
		}
		return finishTargets(rep, targets, o)
	})
}

// measurePull starts a runtime on an empty directory, and pulls a workload twice.
func (t *target) measurePull(ctx context.Context, w workload) (err error) {
	if err := t.open(); err != nil {
		return err
	}
	defer func() {
		err = joinDown(err, t)
		err = errors.Join(err, os.RemoveAll(t.dir))
	}()
	if err := quiet.Wait(ctx); err != nil {
		return err
	}
	add := func(name string, value float64) { t.add(w.name+": "+name, value) }
	pid, before := t.pid(), allocated(t.data)
	_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "clear_refs"), []byte("5"), 0o200) // the peak begins here
	began := time.Now()
	wall, cpu, err := t.pullAll(ctx, pid, w)
	if err != nil {
		return err
	}
	add("cold, s", wall)
	if err := syncDisk(t.dir); err != nil {
		return err
	}
	add("cold and on disk, s", time.Since(began).Seconds())
	add("cold, CPU, s", cpu)
	add("peak RSS of the daemon, MB", float64(field(filepath.Join("/proc", strconv.Itoa(pid), "status"), "VmHWM:"))/1024)
	full := allocated(t.data)
	add(fmt.Sprintf("disk, MB (files: %d)", w.unpacked>>20), float64(full-before)/(1<<20))
	if wall, cpu, err = t.pullAll(ctx, pid, w); err != nil {
		return err
	}
	add("warm, s", wall)
	add("warm, CPU, s", cpu)
	took, err := t.createSome(ctx, w.refs[0])
	if err != nil {
		return err
	}
	add("CreateContainer, ms", took)
	if err := quiet.Wait(ctx); err != nil {
		return err
	}
	began = time.Now()
	if _, err := t.client.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: w.refs[0]}}); err != nil {
		return err
	}
	add("RemoveImage, ms", ms(time.Since(began)))
	gone, err := t.untilFreed(ctx, began)
	add("RemoveImage until its space is free, ms", gone)
	return err
}

// syncDisk returns when all that was written to the disk of a directory is there.
func syncDisk(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// untilFreed returns the time, in milliseconds, from began until as little of the disk was in use
// as it is now that the machine is quiet again.
func (t *target) untilFreed(ctx context.Context, began time.Time) (float64, error) {
	type look struct {
		after time.Duration
		used  int64
	}
	stop, looks := make(chan struct{}), make(chan []look)
	go func() {
		var all []look
		tick := time.NewTicker(goneTick)
		defer tick.Stop()
		for {
			all = append(all, look{time.Since(began), usedBytes(t.dir)})
			select {
			case <-tick.C:
			case <-stop:
				looks <- all
				return
			}
		}
	}()
	err := quiet.Wait(ctx)
	close(stop)
	all := <-looks
	end := all[len(all)-1].used
	i := slices.IndexFunc(all, func(l look) bool { return l.used <= end })
	return ms(all[i].after), err
}

// usedBytes is how much of the disk of a directory is in use.
func usedBytes(dir string) int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0
	}
	return int64(fs.Blocks-fs.Bfree) * fs.Bsize
}

// pullAll pulls a workload, and says how long that took, and how much CPU time of the
// daemon and of those of its children that have ended.
func (t *target) pullAll(ctx context.Context, pid int, w workload) (wall, cpu float64, err error) {
	begin, spent := time.Now(), cpuTime(pid)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(pullers)
	for _, ref := range w.refs {
		g.Go(func() error {
			_, err := t.client.Images.PullImage(gctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
			return err
		})
	}
	err = g.Wait()
	return time.Since(begin).Seconds(), cpuTime(pid) - spent, err
}

// cpuTime is utime, stime, cutime and cstime of a process (proc_pid_stat(5)), seconds.
func cpuTime(pid int) float64 {
	raw, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0
	}
	ticks := 0
	for _, f := range fields[11:15] {
		n, _ := strconv.Atoi(f)
		ticks += n
	}
	return float64(ticks) / 100 // USER_HZ, the same on every architecture that Linux has
}

// createSome is the median of CreateContainer, milliseconds.
func (t *target) createSome(ctx context.Context, ref string) (float64, error) {
	config := t.client.podConfig("creates")
	sandbox, err := t.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: t.handler})
	if err != nil {
		return 0, err
	}
	var took []float64
	for i := range creates {
		begin := time.Now()
		c, err := t.client.CreateContainer(ctx, &cri.CreateContainerRequest{
			PodSandboxId: sandbox.GetPodSandboxId(), SandboxConfig: config,
			Config: &cri.ContainerConfig{
				Metadata: &cri.ContainerMetadata{Name: fmt.Sprint("c", i)}, Image: &cri.ImageSpec{Image: ref, UserSpecifiedImage: ref},
				Command: []string{"/" + program},
				Linux: &cri.LinuxContainerConfig{
					SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: config.GetLinux().GetSecurityContext().GetNamespaceOptions()},
				},
			},
		})
		if err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(begin).Microseconds())/1000)
		// CRI-O gives a container that never ran ten seconds to end on a signal that no one hears.
		if _, err := t.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
			return 0, err
		}
		if _, err := t.client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
			return 0, err
		}
	}
	slices.Sort(took)
	_, err = t.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox.GetPodSandboxId()})
	_, rerr := t.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox.GetPodSandboxId()})
	return took[len(took)/2], errors.Join(err, rerr)
}

// allocated adds up what a tree takes on its disk, files with several names once.
func allocated(root string) (bytes int64) {
	seen := map[uint64]bool{}
	_ = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil || seen[st.Ino] {
			return nil
		}
		seen[st.Ino] = st.Nlink > 1
		bytes += st.Blocks * 512
		return nil
	})
	return bytes
}
