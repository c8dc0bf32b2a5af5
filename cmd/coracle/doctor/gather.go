package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/coracle-project/coracle/cmd/coracled/config"
)

// Places say where to look.
type Places struct {
	ConfigFile string // of coracled
	// Root, State and Socket win over what the file says, unless empty.
	Root, State, Socket string
	// Registries are looked at besides those that the file names and images came from.
	Registries []string
	// Version is this command's.
	Version string
	// Server is the API server of a cluster elsewhere whose node this machine is, or is to be, with
	// a kubelet to come at KubeletPort, if that is not 0.
	Server      string
	KubeletPort int
	// Peers are what the control plane of this machine calls on other nodes.
	Peers []Peer
	// Ports are those of this machine that others of the cluster need, without From.
	Ports []Port
}

// Gather looks at everything. It is bounded in time; what cannot be found out is told in the facts.
func Gather(ctx context.Context, p Places) *Facts {
	f, c := gatherHost(p)
	socket := p.Socket
	if socket == "" {
		socket = c.Socket()
	}
	f.CNI = readCNI(c.Network.CNIConfDir, c.Network.CNIBinDirs)
	f.Network = readNetwork(ctx, &c.Network, f.CNI.File == "")
	f.Cluster = askCluster(ctx, filepath.Join(c.State, "kube", "kube", "pprof.sock"))
	daemon, used := askDaemon(ctx, socket)
	daemon.Mine = p.Version
	f.Daemon = daemon
	if p.Server != "" {
		f.Join = askServer(ctx, p.Server, p.KubeletPort)
	}
	f.Peers = callPeers(ctx, p.Peers)
	f.readBetweenNodes(ctx, p.sharing(c), c.Network.Name)
	f.Registries = askRegistries(ctx, registriesOf(&c.Image, append(used, p.Registries...)))
	return f
}

// readBetweenNodes looks at what lets this machine and the cluster's others reach each other.
func (f *Facts) readBetweenNodes(ctx context.Context, p Places, own string) {
	var errs [2]error
	f.Tunnels, errs[0] = readTunnels(ctx)
	f.Refusals, errs[1] = readRefusals(ctx, own, p.needed(f.Tunnels))
	if err := errors.Join(errs[:]...); err != nil && f.Network.Err == "" {
		f.Network.Err = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
}

// gatherHost looks at what is in this machine, and at coracled's settings.
func gatherHost(p Places) (*Facts, config.Config) {
	f := &Facts{UID: os.Geteuid(), Config: Config{Path: p.ConfigFile}}
	c := f.Config.load()
	if p.Root != "" {
		c.Root = p.Root
	}
	if p.State != "" {
		c.State = p.State
	}
	f.Kernel, f.Limits, f.Security = readKernel(), readLimits(), readSecurity()
	f.Cgroups = readCgroups(c.Cgroup.Driver)
	f.Shim = findShim(c.Shim.Binary)
	f.Disks = []Disk{readDisk("root", c.Root), readDisk("state", c.State)}
	return f, c
}

// load returns the file's settings, or the defaults if there is none or it is broken.
func (c *Config) load() config.Config {
	loaded, err := config.Load(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return config.Default()
	case err != nil:
		c.Exists, c.Err = true, err.Error()
		return config.Default()
	}
	c.Exists, c.Warnings = true, loaded.Warnings()
	return loaded
}

// findShim looks where coracled does: as configured, or next to coracled.
func findShim(configured string) Program {
	p := Program{Name: "containerd-shim-coracle-v1"}
	var places []string
	if configured != "" {
		p.Name, places = configured, []string{configured}
	} else {
		if self, err := os.Executable(); err == nil {
			places = append(places, filepath.Join(filepath.Dir(self), p.Name))
		}
		if daemon, err := exec.LookPath("coracled"); err == nil {
			places = append(places, filepath.Join(filepath.Dir(daemon), p.Name))
		}
	}
	for _, path := range places {
		if found, err := exec.LookPath(path); err == nil {
			p.Path = found
			break
		}
	}
	return p
}

// together calls f for each of many things at once and waits.
func together[T any](all []T, f func(*T)) {
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { f(&all[i]) })
	}
	wg.Wait()
}
