//go:build csi

package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

// sanityCounts are what upstream's csi-sanity says about the test driver. It skips what the driver
// does not say it can do: groups of snapshots, VolumeAttributesClasses, and health in the form of
// the specification's 1.13.
const sanityCounts = "76 Passed | 0 Failed | 1 Pending | 26 Skipped"

var sanityLine = regexp.MustCompile(`(\d+) Passed \| (\d+) Failed \| (\d+) Pending \| (\d+) Skipped`)

// The driver that the other tests use is one: upstream's own tests of drivers pass on it, for file
// systems and for devices, and leave nothing.
func TestCSISanity(t *testing.T) {
	for _, access := range []string{"mount", "block"} {
		t.Run(access, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "csi-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			socket := "unix://" + filepath.Join(dir, "csi.sock")
			driver := exec.Command(testkit.Bin(t, "csi", "csi-driver"), "-data", filepath.Join(dir, "data"), "-endpoint", socket, "-node", "boat")
			driver.Stderr = os.Stderr
			if err := os.Mkdir(filepath.Join(dir, "data"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := driver.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = driver.Process.Signal(unix.SIGTERM)
				if err := driver.Wait(); err != nil {
					t.Errorf("the driver: %v", err)
				}
				endLoops(t, dir)
			})
			out, err := exec.Command(testkit.Bin(t, "csi", "csi-sanity"), "-csi.endpoint", socket, "-csi.testvolumeaccesstype", access,
				"-csi.mountdir", filepath.Join(dir, "mount"), "-csi.stagingdir", filepath.Join(dir, "stage"),
				"-csi.testvolumesize", "335544320", "-csi.testvolumeexpandsize", "536870912", "-ginkgo.no-color").CombinedOutput()
			if got := sanityLine.FindString(string(out)); err != nil || got != sanityCounts {
				t.Errorf("csi-sanity: %v, %q, want %q\n%s", err, got, sanityCounts, out)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "data", "*", "*.img")); len(left) > 0 {
				t.Errorf("these are left: %v", left)
			}
		})
	}
}
