package rules

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// sctpInit is a packet with one chunk, INIT (RFC 9260, section 3.3.2). The test makes it itself, so
// that it needs no kernel that has SCTP: translating ports takes none either.
func sctpInit(from, to uint16, tag uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // tag, checksum
	b = append(b, 1, 0, 0, 20)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = binary.BigEndian.AppendUint32(b, 1<<16)
	b = append(b, 0, 1, 0, 1) // streams
	b = binary.BigEndian.AppendUint32(b, 1)
	binary.LittleEndian.PutUint32(b[8:], sctpSum(b))
	return b
}

func sctpSum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

func TestSCTP(t *testing.T) {
	n := newNode(t)
	table := n.open()
	ports := map[Key]*Port{}
	families := []struct {
		network, service, node string
		pod, client            netip.Addr
	}{
		{"ip4:132", service4, testnet.Node4, n.b.IPv4, n.a.IPv4},
		{"ip6:132", service6, testnet.Node6, n.b.IPv6, n.a.IPv6},
	}
	for _, f := range families {
		ports[Key(f.network)] = &Port{
			Protocol: unix.IPPROTO_SCTP, IPv6: f.pod.Is6(), Backends: []Backend{{Endpoints: []netip.AddrPort{netip.AddrPortFrom(f.pod, 36412)}}},
			Frontends: []Frontend{{Addr: netip.MustParseAddr(f.service), Port: 9899}, {Port: 30899, Masquerade: true}},
		}
	}
	n.apply(table, ports)
	for _, f := range families {
		server, client := n.b.ListenIP(f.network), n.a.ListenIP(f.network)
		for i, way := range []struct {
			to, source string
			port       uint16
		}{{f.service, f.client.String(), 9899}, {f.node, f.node, 30899}} {
			tag := uint32(0x12345678 + i) // by which it is known: masquerading may change the client's port
			buf := make([]byte, 2000)
			var got []byte
			var from net.Addr
			// As a client does, repeat what may be lost while neighbours find each other (RFC 9260,
			// 5.1).
			for late := time.Now().Add(testnet.Patience); got == nil; {
				if time.Now().After(late) {
					t.Fatalf("%s to %s: the pod gets nothing", f.network, way.to)
				}
				if _, err := client.WriteTo(sctpInit(uint16(40000+i), way.port, tag), &net.IPAddr{IP: net.ParseIP(way.to)}); err != nil {
					t.Fatal(err)
				}
				_ = server.SetReadDeadline(time.Now().Add(time.Second))
				size, sender, err := server.ReadFrom(buf)
				if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("%s to %s: %v", f.network, way.to, err)
				}
				if err == nil && size == 32 && binary.BigEndian.Uint32(buf[16:]) == tag {
					got, from = buf[:size], sender
				}
			}
			sum := binary.LittleEndian.Uint32(got[8:])
			copy(got[8:], []byte{0, 0, 0, 0})
			if port := binary.BigEndian.Uint16(got[2:]); port != 36412 || from.String() != way.source || sum != sctpSum(got) || got[12] != 1 {
				t.Errorf("%s to %s: the pod got %x from %s", f.network, way.to, got, from)
			}
		}
	}
}
