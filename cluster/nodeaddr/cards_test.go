package nodeaddr

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Others reach the node by its network cards also while it has no default route. Pods' interfaces are none.
func TestCards(t *testing.T) {
	link := func(index uint32, hardware uint16, info ...netlink.Attribute) netlink.Message {
		header := make([]byte, unix.SizeofIfInfomsg)
		binary.NativeEndian.PutUint16(header[2:], hardware)
		binary.NativeEndian.PutUint32(header[4:], index)
		attributes := []netlink.Attribute{{Type: unix.IFLA_IFNAME, Data: []byte("x\x00")}}
		if len(info) > 0 {
			nested, err := netlink.MarshalAttributes(info)
			if err != nil {
				t.Fatal(err)
			}
			attributes = append(attributes, netlink.Attribute{Type: unix.IFLA_LINKINFO, Data: nested})
		}
		data, err := netlink.MarshalAttributes(attributes)
		if err != nil {
			t.Fatal(err)
		}
		return netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWLINK}, Data: append(header, data...)}
	}
	kind := func(of uint16, name string) netlink.Attribute {
		return netlink.Attribute{Type: of, Data: append([]byte(name), 0)}
	}
	got, err := cards([]netlink.Message{
		link(1, unix.ARPHRD_LOOPBACK),
		link(2, unix.ARPHRD_ETHER), // a card
		link(3, unix.ARPHRD_ETHER, kind(unix.IFLA_INFO_SLAVE_KIND, "bridge")), // a card in a bridge
		link(4, unix.ARPHRD_ETHER, kind(unix.IFLA_INFO_KIND, "veth")),         // a pod
		link(5, unix.ARPHRD_ETHER, kind(unix.IFLA_INFO_KIND, "bond")),
		link(6, unix.ARPHRD_ETHER, kind(unix.IFLA_INFO_KIND, "bridge")), // of CNI plugins
	})
	if want := []uint32{2, 3, 5}; err != nil || !slices.Equal(got, want) {
		t.Errorf("cards %v, %v, want %v", got, err, want)
	}
	if _, err := cards([]netlink.Message{{Header: netlink.Header{Type: unix.RTM_NEWLINK}, Data: append(make([]byte, unix.SizeofIfInfomsg), 1)}}); err == nil {
		t.Error("an attribute that is cut off is no error")
	}
}
