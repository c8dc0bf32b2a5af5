package image

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/coracle-project/coracle/image/crypt"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/image/trust"
	"github.com/coracle-project/coracle/image/unpack"
)

// Config is what a Store is opened with.
type Config struct {
	// Root is the directory of the OCI layout; it is created if missing.
	Root string
	// Layers is where layers are unpacked.
	Layers LayerStore
	// Lazy shows layers before they are here, of the registries whose settings say so; nil: none.
	Lazy LazyStore
	// Registries says how registries are reached.
	Registries registry.Config
	// Policy says which images may be pulled, by their signatures. Zero: all.
	Policy trust.File
	// Keys decrypt encrypted layers.
	Keys crypt.Keys
	// ShortNameRegistry is where names without a registry are, as they are pulled:
	// docker.io, or a registry and path. Empty: they are refused.
	ShortNameRegistry string
	// KeepBlobs keeps the compressed layers as registries sent them. Without, they are
	// gone when they are unpacked: the directory is an OCI layout without its layers,
	// and an image that is saved or pushed has its layers compressed again.
	KeepBlobs bool
	// Pinned are images that are not removed but by name: names as RepoTags and
	// RepoDigests have them, or the beginning of some with * after it.
	Pinned []string
	// HighWater and LowWater, percent of the file system, have a pull that leaves it
	// fuller than the first followed by the removal of images that nothing runs from
	// until it is less full than the second. 0: never.
	HighWater, LowWater int
	// Layer bounds each layer while it is unpacked.
	Layer unpack.Limits
	// Log takes warnings about what recovery and garbage collection found. Default slog.Default().
	Log *slog.Logger

	// used tells how full the file system is, in tests.
	used func() int
	// now is time.Now, but in tests.
	now func() time.Time
}

// Registry is how one registry is reached.
type Registry = registry.Settings

func (c *Config) short() reference.ShortNames { return reference.ShortNames(c.ShortNameRegistry) }

func (c Config) withDefaults() (Config, error) {
	if !filepath.IsAbs(c.Root) {
		return c, fmt.Errorf("image store: root %q must be an absolute path", c.Root)
	}
	if c.Layers == nil {
		return c, errors.New("image store: no layer store given")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.now == nil {
		c.now = time.Now
	}
	c.Layer = c.Layer.WithDefaults()
	return c, nil
}
