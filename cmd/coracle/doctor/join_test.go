package doctor

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestJoin(t *testing.T) {
	now := time.Now()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusUnauthorized) // it is there, whatever it says
	}))
	defer server.Close()
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	for name, c := range map[string]struct {
		server string
		port   int
		at     time.Duration
		want   string // "" if all is well
	}{
		"all is well":                 {server.URL, 0, 0, ""},
		"a clock that is ahead":       {server.URL, 0, -time.Hour, "this machine's clock is 1h0m0s ahead of"},
		"a clock that is behind":      {server.URL, 0, time.Hour, "this machine's clock is 1h0m0s behind that of the cluster"},
		"clocks that differ a little": {server.URL, 0, -time.Minute, ""},
		"no server":                   {"https://127.0.0.1:1", 0, 0, "https://127.0.0.1:1 cannot be reached"},
		"a kubelet's port":            {server.URL, port, 0, fmt.Sprintf("another process has port %d", port)},
	} {
		asked := time.Now()
		now = asked.Add(c.at)
		j := askServer(t.Context(), c.server, c.port)
		// The header's time and the difference are whole seconds.
		if off := j.Ahead + c.at; off < 0 || off > 2*time.Second+time.Since(asked) {
			t.Errorf("%s: the clock is %v ahead", name, j.Ahead)
		}
		j.Ahead = -c.at
		all := checkJoin(&Facts{Join: j})
		switch {
		case len(all) != 1:
			t.Errorf("%s: %+v", name, all)
		case c.want == "" && (all[0].Level != OK || all[0].Remedy != ""):
			t.Errorf("%s: %+v", name, all)
		case c.want != "" && (all[0].Level != Error || all[0].Remedy == "" || !strings.Contains(all[0].Message, c.want)):
			t.Errorf("%s: %+v, want %q", name, all, c.want)
		}
	}
	if checkJoin(&Facts{}) != nil {
		t.Error("a machine of no cluster elsewhere has findings about one")
	}
}
