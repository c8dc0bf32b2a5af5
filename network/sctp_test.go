package network

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"
)

// An SCTP packet with one chunk, INIT or INIT ACK (RFC 9260, section 3). The tests make them
// themselves, so that they need no kernel that has SCTP: mapping ports takes none either.
type sctpPacket struct {
	from, to uint16
	tag      uint32
	kind     byte
}

const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpTag     = 0x12345678 // of the receiver: either side chooses it for the other
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p sctpPacket) bytes() []byte {
	b := make([]byte, 12, 32)
	binary.BigEndian.PutUint16(b, p.from)
	binary.BigEndian.PutUint16(b[2:], p.to)
	binary.BigEndian.PutUint32(b[4:], p.tag)
	b = append(b, p.kind, 0, 0, 20)
	b = binary.BigEndian.AppendUint32(b, sctpTag)
	b = binary.BigEndian.AppendUint32(b, 1<<16)
	b = append(b, 0, 1, 0, 1) // streams
	b = binary.BigEndian.AppendUint32(b, 1)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// parseSCTP fails if the checksum is wrong, as it is when ports are translated and it is not.
func parseSCTP(b []byte) (sctpPacket, error) {
	if len(b) < 16 {
		return sctpPacket{}, fmt.Errorf("%d bytes", len(b))
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	clear(b[8:12])
	if want := crc32.Checksum(b, castagnoli); sum != want {
		return sctpPacket{}, fmt.Errorf("checksum %x, want %x", sum, want)
	}
	return sctpPacket{from: binary.BigEndian.Uint16(b), to: binary.BigEndian.Uint16(b[2:]), tag: binary.BigEndian.Uint32(b[4:]), kind: b[12]},
		nil
}

// sctpSocket gets all packets of SCTP that come to a namespace.
func sctpSocket(t *testing.T, path string, family int) net.PacketConn {
	t.Helper()
	var pc net.PacketConn
	must(t, within(t, path, func() (err error) {
		pc, err = net.ListenPacket("ip"+strconv.Itoa(family)+":132", "")
		return err
	}))
	must(t, pc.SetDeadline(time.Now().Add(patience)))
	return pc
}

// nextSCTP reads packets until one is for port.
func nextSCTP(pc net.PacketConn, port uint16) (sctpPacket, net.Addr, error) {
	buf := make([]byte, 2000)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return sctpPacket{}, nil, err
		}
		p, err := parseSCTP(buf[:n])
		if err != nil || p.to == port {
			return p, from, err
		}
	}
}

func TestSCTPHostPorts(t *testing.T) {
	m := started(t, testConfig(t))
	out := newOutside(t)
	const hostPort, podPort, clientPort = 9899, 36412, 40000
	web := connect(t, m, "web", PortMapping{Protocol: "sctp", HostPort: hostPort, ContainerPort: podPort})
	for _, f := range []struct {
		family       int
		host, client netip.Addr
	}{{4, hostOut4, outside4}, {6, hostOut6, outside6}} {
		t.Run("IPv"+strconv.Itoa(f.family), func(t *testing.T) {
			server, client := sctpSocket(t, web.NetNS, f.family), sctpSocket(t, out, f.family)
			defer server.Close()
			defer client.Close()
			// As a client does, repeat what may be lost while neighbours find each other (RFC 9260,
			// 5.1).
			arrived, sent := make(chan struct{}), make(chan error, 1)
			go func() {
				for {
					_, err := client.WriteTo(sctpPacket{from: clientPort, to: hostPort, kind: sctpInit}.bytes(), &net.IPAddr{IP: f.host.AsSlice()})
					select {
					case <-arrived:
						sent <- err
						return
					case <-time.After(time.Second):
					}
				}
			}()
			got, from, err := nextSCTP(server, podPort)
			close(arrived)
			must(t, <-sent)
			must(t, err)
			if got.kind != sctpInit || got.from != clientPort || from.String() != f.client.String() {
				t.Errorf("the pod got %+v from %s", got, from)
			}
			_, err = server.WriteTo(sctpPacket{from: podPort, to: got.from, tag: sctpTag, kind: sctpInitAck}.bytes(), from)
			must(t, err)
			// A kernel that has SCTP answers, too, that there is no server; that comes on the same
			// way.
			got, from, err = nextSCTP(client, clientPort)
			must(t, err)
			if got.from != hostPort || from.String() != f.host.String() {
				t.Errorf("outside got %+v from %s", got, from)
			}
		})
	}
}
