package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

// Plugins are the plugins of a node and their configuration.
type Plugins struct {
	ConfDir string
	BinDirs []string
	Lib     *libcni.CNIConfig
}

// NewPlugins returns the plugins in binDirs. It does no I/O. libcni keeps its cache in cacheDir.
func NewPlugins(confDir string, binDirs []string, cacheDir string) *Plugins {
	return &Plugins{
		ConfDir: confDir,
		BinDirs: binDirs,
		Lib:     libcni.NewCNIConfigWithCacheDir(binDirs, cacheDir, &executor{stderr: os.Stderr}),
	}
}

// Check returns ErrConfig if a plugin of the list is missing.
func (p *Plugins) Check(list *libcni.NetworkConfigList) error {
	for _, c := range list.Plugins {
		if name := c.Network.Type; !p.has(name) {
			return fmt.Errorf("%w: CNI network %q needs the plugin %q, which is not in %s", ErrConfig, list.Name, name,
				strings.Join(p.BinDirs, ", "))
		}
	}
	return nil
}

func (p *Plugins) has(name string) bool {
	for _, dir := range p.BinDirs {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}
