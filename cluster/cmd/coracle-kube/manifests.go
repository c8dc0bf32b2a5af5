package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/controllers/upstream"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/manifests"
)

// manifestsDir is the flag --manifests.
type manifestsDir string

func (d *manifestsDir) define(f *pflag.FlagSet) {
	f.StringVar((*string)(d), "manifests", "", "`DIRECTORY` whose manifests are applied and kept (default: none)")
}

func (d manifestsDir) check() error {
	if d != "" && !filepath.IsAbs(string(d)) {
		return fmt.Errorf("--manifests %q is no absolute path", string(d))
	}
	return nil
}

// withObjects adds the parts that make objects: the StorageClass local-path, and what manifests
// say.
func withObjects(server *apiserver.Server, dir manifestsDir, node string, board *health.Board,
	parts []func(context.Context) error,
) ([]func(context.Context) error, error) {
	parts, err := withLocalPathClass(server, parts)
	if err != nil {
		return nil, err
	}
	return withManifests(server, dir, node, board, parts)
}

// withManifests adds the part that applies manifests, as an administrator would.
func withManifests(server *apiserver.Server, dir manifestsDir, node string, board *health.Board,
	parts []func(context.Context) error,
) ([]func(context.Context) error, error) {
	if dir == "" {
		return parts, nil
	}
	set, err := in(server, "system:coracle-manifests", user.SystemPrivilegedGroup)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(set.Config)
	if err != nil {
		return nil, err
	}
	facts, err := metadata.NewForConfig(set.Config)
	if err != nil {
		return nil, err
	}
	events, stop := set.Recorder("coracle-manifests", node)
	kept := manifests.New(manifests.Options{
		Dir: string(dir), Node: node, Kube: set.Kube, Dynamic: objects, Metadata: facts, Mapper: upstream.NewMapper(set.Kube.Discovery()),
		Events: events, Health: board.Add("manifests"), Log: set.Logger(),
	})
	return append(parts, func(ctx context.Context) error {
		defer stop()
		return kept.Run(ctx)
	}), nil
}
