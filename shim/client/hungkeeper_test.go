package client_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/shim/keeper"
)

// A keeper that does not answer is replaced. The shim stays, and its descriptors are held again.
func TestHungKeeperIsReplaced(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			r := newShortRig(t)
			req := r.request("trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done")
			r.run(req)
			r.waitLog(req.LogPath, "ready")
			k, shim := r.keeperPID(), r.shimPID()
			r.halt(k)
			if restart {
				r.disconnect()
				r.connect()
			}
			other := r.request("exit 5")
			r.run(other) // it waits for the keeper only as long as a shim does
			r.exit(other.ID)
			r.waitGone(k)
			r.waitHeld(req.ID)
			if now := r.shimPID(); now != shim {
				t.Errorf("shim %d was replaced by %d", shim, now)
			}
			if stacks, _ := filepath.Glob(filepath.Join(r.dir, "stacks-*-keeper")); len(stacks) != 1 {
				t.Errorf("stacks: %v", stacks)
			}
			r.waitNewShim(r.killShim())
			r.alive(req)
		})
	}
}

// waitHeld waits until the keeper holds a container's descriptors and the shim's listener.
func (r *rig) waitHeld(id string) {
	r.Helper()
	r.waitFor("held descriptors", func() bool {
		k, err := keeper.Dial(r.dir)
		if err != nil {
			return false
		}
		defer k.Close()
		keys, lerr := k.List("c/" + id)
		pass, perr := k.List("pass/")
		return lerr == nil && len(keys) == 1 && perr == nil && len(pass) == 1
	})
}
