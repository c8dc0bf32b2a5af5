package kubelet

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/pki"
)

// podRanges tells the runtime the networks of addresses that the cluster has given to this node.
// They are kept in a file: after a reboot the runtime has forgotten them, and the API may be away.
type podRanges struct {
	file    string
	tell    func(ctx context.Context, ranges string) error
	changed chan struct{} // has one entry when there is something to tell
	told    chan struct{} // closed when the runtime was told for the first time

	mu   sync.Mutex
	want string // with commas between, as CRI has them; empty for what the runtime has by itself
}

func newPodRanges(rootDir string, tell func(context.Context, string) error) (*podRanges, error) {
	p := &podRanges{
		file: filepath.Join(rootDir, "pod-ranges"), tell: tell, changed: make(chan struct{}, 1), told: make(chan struct{}),
	}
	data, err := os.ReadFile(p.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if p.want = strings.TrimSpace(string(data)); p.want != "" {
		p.again()
	}
	return p, nil
}

// tellRuntime is how podRanges tells over CRI.
func tellRuntime(c *cri.Client) func(context.Context, string) error {
	return func(ctx context.Context, ranges string) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := c.Runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
			RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: ranges}},
		})
		return err
	}
}

// nodeChanged looks at what the API has of the node. Ranges that were taken away stay in use, as
// with upstream's kubelet: pods have addresses of them.
func (p *podRanges) nodeChanged(n *v1.Node) {
	now := strings.Join(n.Spec.PodCIDRs, ",")
	p.mu.Lock()
	defer p.mu.Unlock()
	if now == "" || now == p.want {
		return
	}
	p.want = now
	p.again()
}

// again has the runtime told, also if it was told before.
func (p *podRanges) again() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// resync is called when the runtime may have forgotten.
func (p *podRanges) resync() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.want != "" {
		p.again()
	}
}

// run tells until ctx ends.
func (p *podRanges) run(ctx context.Context) {
	for {
		select {
		case <-p.changed:
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		ranges := p.want
		p.mu.Unlock()
		if err := p.pass(ctx, ranges); err != nil && ctx.Err() == nil {
			slog.Warn("the runtime was not told the node's ranges of addresses", "ranges", ranges, "err", err)
			time.AfterFunc(time.Second, p.again)
			continue
		}
		select {
		case <-p.told:
		default:
			close(p.told)
		}
	}
}

func (p *podRanges) pass(ctx context.Context, ranges string) error {
	if err := p.tell(ctx, ranges); err != nil {
		return err
	}
	return pki.Replace(p.file, []byte(ranges+"\n"), 0o600)
}

var errNoRanges = errors.New("the cluster has not given this node a range of pods' addresses yet")

// err says why pods cannot have addresses yet, nil if they can.
func (p *podRanges) err() error {
	select {
	case <-p.told:
		return nil
	default:
		return errNoRanges
	}
}
