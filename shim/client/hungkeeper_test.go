package client_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

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

// A keeper that hung while a container was deleted, and then goes on, drops the container's
// descriptors: it would hold the log, FIFOs and terminals forever.
func TestHungKeeperThatGoesOnHoldsNothingOld(t *testing.T) {
	r := newRig(t)
	req := r.request("exit 5")
	r.run(req)
	r.exit(req.ID)
	k := r.keeperPID()
	r.halt(k)
	must(t, r.c.Delete(r.ctx(), pod, req.ID))
	r.sendSignal(k, unix.SIGCONT)
	r.waitKeys()
	if now := r.keeperPID(); now != k {
		t.Errorf("keeper %d was replaced by %d", k, now)
	}
}

// The next shim drops what the one before it did not live to drop, and nothing else.
func TestNextShimDropsWhatIsOld(t *testing.T) {
	r := newRig(t)
	req := r.request("trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done")
	r.run(req)
	r.waitLog(req.LogPath, "ready")
	k, err := keeper.Dial(r.dir)
	must(t, err)
	defer k.Close()
	for _, key := range []string{"c/gone", "x/gone/one", "x/" + req.ID + "/gone"} {
		must(t, k.Put(key, "out", os.Stderr))
	}
	r.waitNewShim(r.killShim())
	r.waitKeys("c/" + req.ID)
	r.alive(req)
}

// waitKeys waits until the keeper holds exactly this of containers and execs.
func (r *rig) waitKeys(want ...string) {
	r.Helper()
	r.waitFor("descriptors", func() bool {
		k, err := keeper.Dial(r.dir)
		if err != nil {
			return false
		}
		defer k.Close()
		containers, cerr := k.List("c/")
		execs, xerr := k.List("x/")
		return cerr == nil && xerr == nil && slices.Equal(append(containers, execs...), want)
	})
}

// waitHeld waits until the keeper has a container's descriptors and the shim's listener.
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
