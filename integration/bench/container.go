package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/internal/testkit"
)

// benchmarkContainer measures one container, with ocibench.
func benchmarkContainer(ctx context.Context, o options) error {
	program, err := testkit.FindBin("test", "ocibench")
	if err != nil {
		return err
	}
	rep := newReport(o, page.Container, map[string]any{
		"mounts": page.Mounts, "mounted": page.WithMounts, "turns": page.Turns, "inRow": page.InRow(o.n),
	}, page.ContainerTables...)
	if err := prepareHost(); err != nil {
		return fmt.Errorf("prepare the host: %w", err)
	}
	out, err := runProgram(ctx, "ocibench", []string{program, "-bin", filepath.Dir(filepath.Dir(program)), "-n", strconv.Itoa(o.n)})
	if err != nil {
		return err
	}
	rep.Versions["programs"], rep.Figures = out.Version, out.Figures
	return finish(rep, o)
}

// prepareHost makes the host what all runtimes can work on: a /run of this run's own, and no
// hybrid of cgroup versions.
func prepareHost() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("run", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroups, &fs); err != nil || fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return err
	}
	return withoutUnified()
}

const cgroups = "/sys/fs/cgroup"

// withoutUnified shows the hierarchies of version 1 alone. To unmount the other would not do:
// crun then uses its empty directory, which is the host's.
func withoutUnified() error {
	const view = "/run/cgroup"
	if err := os.Mkdir(view, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("cgroup", view, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", view, err)
	}
	entries, err := os.ReadDir(cgroups)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(cgroups, e.Name()), filepath.Join(view, e.Name())
		if link, err := os.Readlink(from); err == nil { // cpu to cpu,cpuacct
			if err := os.Symlink(link, to); err != nil {
				return err
			}
			continue
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(from, &fs); err != nil || fs.Type != unix.CGROUP_SUPER_MAGIC {
			continue
		}
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", from, err)
		}
	}
	if err := unix.Mount(view, cgroups, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", cgroups, err)
	}
	return unix.Unmount(view, unix.MNT_DETACH)
}
