// Package env computes what a container is run with: its environment from all sources, and its
// command and arguments with $(NAME) references to it expanded.
//
// The order of precedence is upstream's: a container's own env, then envFrom (later sources over
// earlier ones), then the variables of services. A reference $(NAME) in a value sees what envFrom
// and the entries before it defined, and services; one to a name that is not defined stays as it
// is.
//
// Config maps and secrets are read from the API each time a container is made: that is rarer than
// they would change if they were watched. Errors are in upstream's words, and become the
// container's waiting reason CreateContainerConfigError. They never hold a value.
package env

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	listersv1 "k8s.io/client-go/listers/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"

	"github.com/coracle-project/coracle/cluster/client"
)

// Options say what environments need to know of the node.
type Options struct {
	// NodeName is this node's name.
	NodeName string
	// RootDir is the kubelet's directory, for variables from files in emptyDir volumes.
	RootDir string
	// Allocatable returns what the node can give to pods, the limit of containers that have none.
	// Nil means unknown.
	Allocatable func() v1.ResourceList
	// Log gets errors and warnings; nil discards them.
	Log *slog.Logger
}

// Resolver computes environments. It is safe for concurrent use.
type Resolver struct {
	opts     Options
	kube     kubernetes.Interface
	services listersv1.ServiceLister
	synced   func() bool
}

// New returns a resolver that reads as set's identity, and services from its informers.
func New(set *client.Set, opts Options) *Resolver {
	services := set.Informers.Core().V1().Services()
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	return &Resolver{
		opts: opts, kube: set.Kube,
		services: services.Lister(), synced: services.Informer().HasSynced,
	}
}

// staticSource marks pods that come from files; those may start before there is an API.
const staticSource = "kubernetes.io/config.source"

// Resolve returns the container's environment and its expanded command and arguments. podIPs are
// the pod's addresses, hostIPs the node's, each with the preferred family first.
func (r *Resolver) Resolve(ctx context.Context, pod *v1.Pod, container *v1.Container, podIPs,
	hostIPs []string,
) (envs []*runtimeapi.KeyValue, command, args []string, err error) {
	services, err := r.serviceVariables(pod)
	if err != nil {
		return nil, nil, nil, err
	}
	c := &call{
		Resolver: r, pod: pod, container: container, podIPs: podIPs, hostIPs: hostIPs,
		objects: map[objectName]values{}, set: map[string]string{}, services: services,
	}
	for i := range container.EnvFrom {
		if err := c.addAll(ctx, &container.EnvFrom[i]); err != nil {
			return nil, nil, nil, err
		}
	}
	expand := expansion.MappingFuncFor(c.set, services)
	for i := range container.Env {
		entry := &container.Env[i]
		value, set := entry.Value, true
		if value != "" {
			value = expansion.Expand(value, expand)
		} else if entry.ValueFrom != nil {
			if value, set, err = c.from(ctx, entry.ValueFrom); err != nil {
				return nil, nil, nil, err
			}
		}
		if set {
			c.put(entry.Name, value)
		}
	}
	for _, name := range sorted(services) {
		if _, own := c.set[name]; !own {
			c.put(name, services[name])
		}
	}
	for _, name := range c.order {
		envs = append(envs, &runtimeapi.KeyValue{Key: name, Value: []byte(c.set[name])})
	}
	all := expansion.MappingFuncFor(c.set)
	return envs, expandAll(container.Command, all), expandAll(container.Args, all), nil
}

func expandAll(words []string, mapping func(string) string) []string {
	var expanded []string
	for _, word := range words {
		expanded = append(expanded, expansion.Expand(word, mapping))
	}
	return expanded
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// call is one Resolve.
type call struct {
	*Resolver
	pod             *v1.Pod
	container       *v1.Container
	podIPs, hostIPs []string
	services        map[string]string

	// objects are what was read of config maps and secrets, each once.
	objects map[objectName]values
	// set are the variables so far, order their names in the order of their first mention.
	set   map[string]string
	order []string
}

func (c *call) put(name, value string) {
	if _, ok := c.set[name]; !ok {
		c.order = append(c.order, name)
	}
	c.set[name] = value
}

// addAll adds the variables of an envFrom source.
func (c *call) addAll(ctx context.Context, source *v1.EnvFromSource) error {
	var name objectName
	var optional *bool
	switch {
	case source.ConfigMapRef != nil:
		name, optional = objectName{"ConfigMap", source.ConfigMapRef.Name}, source.ConfigMapRef.Optional
	case source.SecretRef != nil:
		name, optional = objectName{"Secret", source.SecretRef.Name}, source.SecretRef.Optional
	default:
		return nil
	}
	data, found, err := c.object(ctx, name, optional)
	if err != nil || !found {
		return err
	}
	for _, key := range sorted(data) {
		c.put(source.Prefix+key, data[key])
	}
	return nil
}

// from returns the value of a valueFrom source. It is not set if the source is optional and
// missing.
func (c *call) from(ctx context.Context, source *v1.EnvVarSource) (value string, set bool, err error) {
	switch {
	case source.FieldRef != nil:
		value, err = c.field(source.FieldRef)
		return value, true, err
	case source.ResourceFieldRef != nil:
		value, err = c.resource(source.ResourceFieldRef)
		return value, true, err
	case source.ConfigMapKeyRef != nil:
		ref := source.ConfigMapKeyRef
		return c.key(ctx, objectName{"ConfigMap", ref.Name}, ref.Key, ref.Optional)
	case source.SecretKeyRef != nil:
		ref := source.SecretKeyRef
		return c.key(ctx, objectName{"Secret", ref.Name}, ref.Key, ref.Optional)
	case source.FileKeyRef != nil:
		return c.file(source.FileKeyRef)
	}
	return "", true, nil
}

var errNoServiceLinks = errors.New("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")

func (c *call) missingKey(name objectName, key string) error {
	return fmt.Errorf("couldn't find key %v in %s %v/%v", key, name.kind, c.pod.Namespace, name.name)
}
