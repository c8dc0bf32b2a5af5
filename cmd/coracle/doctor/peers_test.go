package doctor

import (
	"net"
	"strings"
	"testing"
)

func TestPeers(t *testing.T) {
	open, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	two, three := Peer{Name: "two", Kubelet: open.Addr().String()}, Peer{Name: "three", Kubelet: closed.Addr().String()}
	all := checkPeers(&Facts{Peers: callPeers(t.Context(), []Peer{two, three})})
	if len(all) != 1 || all[0].Level != Error || all[0].Remedy == "" ||
		!strings.Contains(all[0].Message, "node three cannot be reached at "+three.Kubelet) ||
		!strings.Contains(all[0].Message, "connection refused") {
		t.Errorf("%+v", all)
	}
	if all = checkPeers(&Facts{Peers: callPeers(t.Context(), []Peer{two})}); len(all) != 1 || all[0].Level != OK {
		t.Errorf("%+v", all)
	}
	if checkPeers(&Facts{}) != nil {
		t.Error("a cluster of one machine has findings about others")
	}
}
