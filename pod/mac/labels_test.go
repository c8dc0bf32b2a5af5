package mac_test

import (
	"slices"
	"testing"

	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/podtest"
)

// labelled is a container's labels, and how its volumes are relabelled.
type labelled struct {
	mac.Labels
	volume mac.VolumeLabel
	held   bool
}

func label(t *testing.T, s *mac.SELinux, pod mac.Labels, sec podconfig.Security) labelled {
	t.Helper()
	l, held, err := s.Container(pod, &sec)
	podtest.OK(t, err)
	return labelled{l, mac.VolumeLabelOf(pod, l, &sec), held}
}

func podLabels(t *testing.T, s *mac.SELinux) mac.Labels {
	t.Helper()
	return podtest.Must[mac.Labels](t)(s.Pod(&podconfig.Pod{}))
}

// Regression: each container had categories of its own, and shared volumes had none.
func TestSELinuxLabelsOfPod(t *testing.T) {
	s := mac.NewSELinux(podtest.NewLabels())
	one, other := podLabels(t, s), podLabels(t, s)
	const process, mount = "u:r:container_t:s0:c1,c1000", "u:object_r:container_file_t:s0:c1,c1000"
	const elsewhere = "u:object_r:container_file_t:s0:c7,c8"
	if one != (mac.Labels{Process: process, Mount: mount}) {
		t.Fatalf("the first pod's labels are %+v", one)
	}
	own := mac.VolumeLabel{Mount: mount, Access: mac.PodAccess}
	for name, tc := range map[string]struct {
		pod  mac.Labels
		sec  podconfig.Security
		want labelled
	}{
		"as its pod": {one, podconfig.Security{}, labelled{one, own, false}},
		"own type": {
			one,
			podconfig.Security{SELinux: podconfig.SELinux{Type: "web_t"}},
			labelled{mac.Labels{Process: "u:r:web_t:s0:c1,c1000", Mount: mount}, own, true},
		},
		"own level": {
			one,
			podconfig.Security{SELinux: podconfig.SELinux{Level: "s0:c7,c8"}},
			labelled{
				mac.Labels{Process: "u:r:container_t:s0:c7,c8", Mount: elsewhere},
				mac.VolumeLabel{Mount: elsewhere, Access: mac.PodAccess},
				true,
			},
		},
		"privileged": {
			one,
			podconfig.Security{Privileged: true},
			// The others must still read the volume.
			labelled{mac.Labels{Mount: "u:object_r:container_file_t:s0:c1022,c1023"}, own, false},
		},
		"privileged, own type": {
			one,
			podconfig.Security{Privileged: true, SELinux: podconfig.SELinux{Type: "spc_t"}},
			labelled{mac.Labels{Process: "u:r:spc_t:s0:c1,c1000", Mount: mount}, own, true},
		},
		"another pod's": {
			other,
			podconfig.Security{},
			labelled{
				mac.Labels{Process: "u:r:container_t:s0:c2,c1000", Mount: "u:object_r:container_file_t:s0:c2,c1000"},
				mac.VolumeLabel{Mount: "u:object_r:container_file_t:s0:c2,c1000", Access: mac.PodAccess},
				false,
			},
		},
	} {
		if got := label(t, s, tc.pod, tc.sec); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

// Regression of an upgrade: containers of pods that an earlier version made would be confined by
// nothing, and would lock their siblings, which have other categories, out of the volumes.
func TestSELinuxLabelsOfOlderPod(t *testing.T) {
	labels := podtest.NewLabels()
	s := mac.NewSELinux(labels)
	var none mac.Labels // the pod's record has no labels
	plain := label(t, s, none, podconfig.Security{})
	want := mac.VolumeLabel{Mount: "u:object_r:container_file_t:s0:c1,c1000", Access: mac.AllAccess}
	if plain.Process != "u:r:container_t:s0:c1,c1000" || !plain.held || plain.volume != want {
		t.Errorf("a container of a pod without labels: %+v", plain)
	}
	privileged := label(t, s, none, podconfig.Security{Privileged: true})
	want.Mount = "u:object_r:container_file_t:s0:c1022,c1023"
	if privileged.Process != "" || privileged.held || privileged.volume != want {
		t.Errorf("a privileged one: %+v", privileged)
	}
	if got := labels.Reserved(); !slices.Equal(got, []string{"s0:c1,c1000"}) {
		t.Errorf("reserved %q", got)
	}
	s.Release(plain.Labels)
	if got := labels.Reserved(); len(got) > 0 {
		t.Errorf("reserved after the release: %q", got)
	}
}

// Regression: a level that several pods name was free for others when the first of them went.
func TestSELinuxLevelIsHeldUntilItsLastUserIsGone(t *testing.T) {
	labels := podtest.NewLabels()
	s := mac.NewSELinux(labels)
	shared := podconfig.Pod{}
	shared.SELinux.Level = "s0:c3,c4"
	first := podtest.Must[mac.Labels](t)(s.Pod(&shared))
	second := podtest.Must[mac.Labels](t)(s.Pod(&shared))
	s.Hold(first) // of a pod that an earlier daemon made
	s.Release(mac.Labels{})
	for _, l := range []mac.Labels{first, second} {
		s.Release(l)
		if got := labels.Reserved(); !slices.Equal(got, []string{"s0:c3,c4"}) {
			t.Errorf("reserved %q while the level has a user", got)
		}
	}
	s.Release(first)
	if got := labels.Reserved(); len(got) > 0 {
		t.Errorf("reserved after the last release: %q", got)
	}
}
