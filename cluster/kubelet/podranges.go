package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/pki"
)

// podRanges tells the runtime the networks of addresses that the cluster has given to this node.
// They are kept in a file: after a reboot the runtime has forgotten them, and the API may be away.
type podRanges struct {
	log     *slog.Logger
	file    string
	tell    func(ctx context.Context, ranges string) error
	changed chan struct{} // has one entry when there is something to tell
	became  func()        // called when pods can have addresses that could not before

	mu    sync.Mutex
	have  nodeRanges
	ready bool // whether the runtime was told what have says
	// refused is why the runtime did not take them the last time.
	refused error
}

// nodeRanges is what the file has. Another Node of this name, after a deletion or in another
// cluster, has other ranges, and these may be another node's by then.
type nodeRanges struct {
	// Node is the UID of the Node that the ranges were given to.
	Node types.UID `json:"node"`
	// Ranges have commas between, as with CRI; empty for what the runtime has by itself.
	Ranges string `json:"ranges"`
}

func newPodRanges(rootDir string, tell func(context.Context, string) error, became func(), log *slog.Logger) (*podRanges, error) {
	p := &podRanges{
		log:  log,
		file: filepath.Join(rootDir, "pod-ranges.json"), tell: tell, changed: make(chan struct{}, 1), became: became,
	}
	data, err := os.ReadFile(p.file)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &p.have); err != nil { // the API has them, too
		p.log.Warn("the file of the node's ranges of addresses is damaged", "file", p.file, "err", err)
		p.have = nodeRanges{}
	}
	if p.have.Ranges != "" {
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
// with upstream's kubelet: pods have addresses of them. Those of another Node do not.
func (p *podRanges) nodeChanged(n *v1.Node) {
	now := strings.Join(n.Spec.PodCIDRs, ",")
	p.mu.Lock()
	defer p.mu.Unlock()
	another := p.have.Node != n.UID
	if another {
		p.have, p.ready = nodeRanges{Node: n.UID}, false
	}
	given := now != "" && now != p.have.Ranges
	if given {
		p.have.Ranges = now
	}
	if another || given {
		p.again()
	}
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
	if p.have.Ranges != "" {
		p.again()
	}
}

// firstPause and longestPause are between two tries to tell the runtime.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// run tells until ctx ends.
func (p *podRanges) run(ctx context.Context) {
	pause := firstPause
	for {
		select {
		case <-p.changed:
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		have := p.have
		p.mu.Unlock()
		if err := p.pass(ctx, have); err != nil && ctx.Err() == nil {
			p.log.Warn("the runtime was not told the node's ranges of addresses", "ranges", have.Ranges, "err", err)
			p.failed(err)
			time.AfterFunc(pause, p.again)
			pause = min(2*pause, longestPause)
			continue
		}
		pause = firstPause
		if p.passed(have) {
			p.became()
		}
	}
}

func (p *podRanges) pass(ctx context.Context, have nodeRanges) error {
	if have.Ranges == "" {
		if err := os.Remove(p.file); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := p.tell(ctx, have.Ranges); err != nil {
		return err
	}
	data, err := json.Marshal(have)
	if err != nil {
		return err
	}
	return pki.Replace(p.file, append(data, '\n'), 0o600)
}

// failed notes why the runtime was not told.
func (p *podRanges) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = err
}

// passed notes what the runtime was told, and returns whether pods can have addresses that could
// not before.
func (p *podRanges) passed(have nodeRanges) (became bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = nil
	if have.Ranges == "" || p.have != have {
		return false
	}
	became, p.ready = !p.ready, true
	return became
}

var errNoRanges = errors.New("the cluster has not given this node a range of pods' addresses yet")

// errOf is err for a Node by its UID, which is empty for one that is not registered yet.
func (p *podRanges) errOf(node types.UID) error {
	p.mu.Lock()
	other := p.have.Node != node
	p.mu.Unlock()
	if other {
		return errNoRanges
	}
	return p.err()
}

// err says why pods cannot have addresses yet, nil if they can.
func (p *podRanges) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ready:
		return nil
	case p.refused != nil && p.have.Ranges != "":
		return fmt.Errorf("the runtime does not take the node's ranges of pods' addresses %s: %w", p.have.Ranges, p.refused)
	}
	return errNoRanges
}
