package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/controllers"
	"github.com/coracle-project/coracle/cluster/controllers/localpath"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/holders"
)

// localPathRoot is where volumes of the StorageClass local-path are. The command coracle knows it,
// too.
func localPathRoot(root string) string { return filepath.Join(root, "local-path") }

func localPath(root, node string, log *slog.Logger) *localpath.Options {
	return &localpath.Options{
		Root: localPathRoot(root), NodeName: node,
		Users: func(name string) ([]types.UID, error) { return holders.Users(kubeletRoot(root), name, log) },
	}
}

// localPathIfAlone has the controllers make volumes where there is one control-plane node. With
// several, each makes those of its own node, whether it leads or not.
func (o *apiOptions) localPathIfAlone(node string) *localpath.Options {
	if o.several {
		return nil
	}
	return localPath(o.root, node, o.log)
}

// localPathPart makes the volumes of this node, of several with a control plane.
func localPathPart(server *apiserver.Server, root, node string) (func(context.Context) error, error) {
	set, err := in(server, serviceaccount.MakeUsername(metav1.NamespaceSystem, controllers.BinderAccount),
		serviceaccount.MakeGroupNames(metav1.NamespaceSystem)...)
	if err != nil {
		return nil, err
	}
	o := localPath(root, node, server.Log())
	o.OnlySelected = true
	c := localpath.New(set, *o)
	return func(ctx context.Context) error {
		c.Run(ctx)
		return nil
	}, nil
}

// withLocalPathClass adds the part that makes the StorageClass, as an administrator would.
func withLocalPathClass(server *apiserver.Server, parts []func(context.Context) error) ([]func(context.Context) error, error) {
	set, err := in(server, "system:coracle-storage", user.SystemPrivilegedGroup)
	if err != nil {
		return nil, err
	}
	return append(parts, untilDone(server.Log(), "the storage class "+localpath.ClassName+" is not made", func(ctx context.Context) error {
		return localpath.EnsureClass(ctx, set.Kube)
	})), nil
}

// untilDone is a part that does one thing, and tries again until that succeeds. failure is logged.
func untilDone(log *slog.Logger, failure string, do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		again := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute}
		for {
			err := do(ctx)
			if err == nil || ctx.Err() != nil {
				return nil
			}
			log.Warn(failure, "err", err)
			select {
			case <-time.After(again.Step()):
			case <-ctx.Done():
			}
		}
	}
}
