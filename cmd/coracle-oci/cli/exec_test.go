package cli

import (
	"maps"
	"testing"
)

func TestParseCgroups(t *testing.T) {
	for _, c := range []struct {
		args []string
		want map[string]string
	}{
		{nil, nil},
		{[]string{"/sub"}, map[string]string{"": "/sub"}},
		{[]string{"cpu,cpuacct:/a", "memory:/b"}, map[string]string{"cpu": "/a", "cpuacct": "/a", "memory": "/b"}},
	} {
		if got, err := parseCgroups(c.args); err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%v: got %v, %v; want %v", c.args, got, err, c.want)
		}
	}
	for _, args := range [][]string{{"/a", "/b"}, {"cpu:/a", "/b"}, {":/a"}, {"cpu,:/a"}, {"cpu:/a", "cpu:/b"}} {
		if got, err := parseCgroups(args); err == nil {
			t.Errorf("%v: got %v and no error", args, got)
		}
	}
}
