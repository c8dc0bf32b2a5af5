package main

import (
	"context"
	"encoding/json"
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
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pullers is how many images of a workload are pulled at the same time.
const pullers = 8

// creates is how many containers are made of a workload's first image.
const creates = 20

// pulled is what one runtime needs for one workload.
type pulled struct {
	Cold      float64 `json:"cold_s"`
	ColdCPU   float64 `json:"cold_cpu_s"`
	Warm      float64 `json:"warm_s"`
	WarmCPU   float64 `json:"warm_cpu_s"`
	PeakRSS   float64 `json:"peak_rss_mb"`
	Disk      float64 `json:"disk_mb"`
	DiskRatio float64 `json:"disk_of_unpacked"`
	Create    float64 `json:"create_ms"`
	Remove    float64 `json:"remove_ms"` // the first image
}

// imageResult is one runtime's figures, by workload.
type imageResult struct {
	Target  string            `json:"target"`
	Version string            `json:"version"`
	Pulled  map[string]pulled `json:"pulled"`
}

type imageReport struct {
	Date      string         `json:"date"`
	Machine   machine        `json:"machine"`
	Workloads []string       `json:"workloads"`
	Unpacked  []int64        `json:"unpacked_bytes"`
	Rounds    int            `json:"rounds"`
	Results   []*imageResult `json:"results"`
}

// benchmarkImages measures pulling and unpacking.
func benchmarkImages(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	registry, err := publish(ctx, dir) // with the pause image that peers want
	if err != nil {
		return err
	}
	defer registry.Close()
	work, err := publishImages(ctx, o.tiny)
	if err != nil {
		return err
	}
	targets, err := chooseTargets(o.targets, dir, o.seccomp)
	if err != nil {
		return err
	}
	rep := imageReport{Date: time.Now().UTC().Format(time.DateOnly), Machine: thisMachine(), Rounds: o.imageRounds}
	for _, w := range work {
		rep.Workloads, rep.Unpacked = append(rep.Workloads, w.name), append(rep.Unpacked, w.unpacked)
	}
	for _, t := range targets {
		rep.Results = append(rep.Results, &imageResult{Target: t.name, Pulled: map[string]pulled{}})
	}
	for _, w := range work {
		if err := measureWorkload(ctx, targets, w, rep); err != nil {
			return err
		}
	}
	rep.Machine.LoadAfter = loadAverage()
	fmt.Print(aligned(imageRows(rep)))
	if o.md != "" {
		err = page.Write(o.md, page.Images, imagePage(rep))
	}
	if o.out != "" {
		raw, jerr := json.MarshalIndent(rep, "", "  ")
		err = errors.Join(err, jerr, os.WriteFile(o.out, append(raw, '\n'), 0o644))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// measureWorkload pulls a workload with all runtimes, which take turns, so that a noisy moment
// falls on all of them.
func measureWorkload(ctx context.Context, targets []*target, w workload, rep imageReport) error {
	rounds := rep.Rounds
	if len(w.refs) > 1 {
		rounds = 1 // it is long enough
	}
	all := make([][]pulled, len(targets))
	for range rounds {
		for i, t := range targets {
			p, version, err := measurePull(ctx, t, w)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", t.name, w.name, err)
			}
			rep.Results[i].Version = version
			all[i] = append(all[i], p)
		}
	}
	for i, r := range rep.Results {
		r.Pulled[w.name] = median(all[i])
	}
	return nil
}

// median takes the median of each figure.
func median(all []pulled) pulled {
	pick := func(of func(pulled) float64) float64 {
		values := make([]float64, len(all))
		for i, p := range all {
			values[i] = of(p)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return pulled{
		Cold: pick(func(p pulled) float64 { return p.Cold }), ColdCPU: pick(func(p pulled) float64 { return p.ColdCPU }),
		Warm: pick(func(p pulled) float64 { return p.Warm }), WarmCPU: pick(func(p pulled) float64 { return p.WarmCPU }),
		PeakRSS: pick(func(p pulled) float64 { return p.PeakRSS }),
		Disk:    pick(func(p pulled) float64 { return p.Disk }), DiskRatio: pick(func(p pulled) float64 { return p.DiskRatio }),
		Create: pick(func(p pulled) float64 { return p.Create }), Remove: pick(func(p pulled) float64 { return p.Remove }),
	}
}

// measurePull starts a runtime on an empty directory, and pulls a workload twice.
func measurePull(ctx context.Context, t *target, w workload) (p pulled, version string, err error) {
	if err := t.open(); err != nil {
		return p, "", err
	}
	defer func() {
		err = joinDown(err, t)
		err = errors.Join(err, os.RemoveAll(t.dir))
	}()
	if v, err := t.client.Version(ctx, &cri.VersionRequest{}); err == nil {
		version = v.GetRuntimeName() + " " + v.GetRuntimeVersion()
	}
	unix.Sync()
	pid := t.pid()
	before := allocated(t.data)
	_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "clear_refs"), []byte("5"), 0o200) // the peak begins here
	if p.Cold, p.ColdCPU, err = t.pullAll(ctx, pid, w); err != nil {
		return p, version, err
	}
	p.PeakRSS = float64(field(filepath.Join("/proc", strconv.Itoa(pid), "status"), "VmHWM:")) / 1024
	unix.Sync()
	used := allocated(t.data) - before
	p.Disk, p.DiskRatio = float64(used)/(1<<20), float64(used)/float64(w.unpacked)
	if p.Warm, p.WarmCPU, err = t.pullAll(ctx, pid, w); err != nil {
		return p, version, err
	}
	if p.Create, err = t.createSome(ctx, w.refs[0]); err != nil {
		return p, version, err
	}
	begin := time.Now()
	_, err = t.client.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: w.refs[0]}})
	p.Remove = float64(time.Since(begin).Microseconds()) / 1000
	return p, version, err
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
				Linux:   &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: config.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
			},
		})
		if err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(begin).Microseconds())/1000)
		// CRI-O gives a container that never ran ten seconds to end on a signal that nobody hears.
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
