package doctor

import (
	"net"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

func TestPeers(t *testing.T) {
	open, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	two := Peer{Name: "two", Part: "kubelet", At: open.Addr().String(), Without: "logs do not work"}
	three := Peer{Name: "three", Part: "kubelet", At: testkit.RefusingAddr(t), Without: "logs do not work"}
	all := checkPeers(&Facts{Peers: callPeers(t.Context(), []Peer{two, three})})
	if len(all) != 1 || all[0].Level != Error || all[0].Remedy == "" ||
		!strings.Contains(all[0].Message, "node three cannot be reached at "+three.At) ||
		!strings.Contains(all[0].Message, "connection refused") {
		t.Errorf("%+v", all)
	}
	if all = checkPeers(&Facts{Peers: callPeers(t.Context(), []Peer{two})}); len(all) != 1 || all[0].Level != OK {
		t.Errorf("%+v", all)
	}
	two.Err, two.Dropped = "i/o timeout", true
	_, port, _ := net.SplitHostPort(two.At)
	if all = checkPeers(&Facts{Peers: []Peer{two}}); len(all) != 1 ||
		!strings.Contains(all[0].Remedy, "a firewall drops TCP port "+port+" from this machine to that one") {
		t.Errorf("where nothing answers: %+v", all)
	}
	layers := three
	layers.Optional = true // another runtime listens nowhere
	if all = checkPeers(&Facts{Peers: callPeers(t.Context(), []Peer{layers})}); len(all) != 1 || all[0].Level != OK {
		t.Errorf("a part that the node does not have: %+v", all)
	}
	layers.Err, layers.Dropped = "i/o timeout", true
	if all = checkPeers(&Facts{Peers: []Peer{layers}}); len(all) != 1 || all[0].Level != Warning {
		t.Errorf("where nothing answers for layers: %+v", all)
	}
	if checkPeers(&Facts{}) != nil {
		t.Error("a cluster of one machine has findings about others")
	}
}
