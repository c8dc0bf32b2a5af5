package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/coracle-project/coracle/cmd/coracle/kubesocket"
)

// bgpProgram announces a node's routes to the routers of --bgp-peer. The supervisor runs it next to
// the cluster process, which tells it by a file what to announce.
const bgpProgram = "coracle-bgp"

// bgpPeer is the prefix of a router's component in the status of coracle-bgp.
const bgpPeer = "BGP peer "

// bgp is the directory of the routes that are announced, and of coracle-bgp's socket.
func (p place) bgp() string    { return filepath.Join(p.state, "bgp") }
func (p place) bgpLog() string { return filepath.Join(p.logs(), "bgp.log") }

// bgpArgs are what coracle-bgp is started with.
func bgpArgs(p place, o upOptions) []string {
	args := []string{"--dir", p.bgp(), "--as", o.BGPAS}
	for _, peer := range o.BGPPeers {
		args = append(args, "--peer", peer)
	}
	return args
}

// bgpRoutesArgs are for the cluster process.
func bgpRoutesArgs(p place, o upOptions) []string {
	if len(o.BGPPeers) == 0 {
		return nil
	}
	return []string{"--bgp-dir", p.bgp()}
}

// checkBGP refuses one of the flags without the other. coracle-bgp checks the peers themselves.
func (o *upOptions) checkBGP() error {
	switch {
	case o.BGPAS == "" && len(o.BGPPeers) > 0:
		return fmt.Errorf("--bgp-peer %s without --bgp-as: name the AS of this node, such as 64512", o.BGPPeers[0])
	case o.BGPAS != "" && len(o.BGPPeers) == 0:
		return fmt.Errorf("--bgp-as %s without --bgp-peer: name the routers, such as '10.0.0.254 as=64500'", o.BGPAS)
	}
	return nil
}

// bgpHealth has a line for each router that this node announces its routes to.
func bgpHealth(ctx context.Context, p place) []health {
	if len(remembered(p).BGPPeers) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longestTry) // others may have used up ctx
	defer cancel()
	all, err := healthAt(ctx, filepath.Join(p.bgp(), "health.sock"))
	if errors.Is(err, kubesocket.ErrNone) || errors.Is(err, syscall.ECONNREFUSED) {
		err = errors.New("it does not run")
	}
	if err != nil {
		return []health{line(bgpProgram, "", "", fmt.Errorf("%w; %s may tell why", err, p.bgpLog()))}
	}
	return all
}

// keepRoutes has routers keep this node's routes while coracle-bgp is replaced by another one.
// coracle-bgp removes the file when it starts.
func (p place) keepRoutes() error {
	err := os.WriteFile(filepath.Join(p.bgp(), "keep"), nil, 0o644)
	if errors.Is(err, fs.ErrNotExist) { // it does not run
		return nil
	}
	return err
}
