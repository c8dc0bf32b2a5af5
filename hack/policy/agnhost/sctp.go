package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"time"
)

// An association starts with the client's INIT, which the server answers with INIT ACK (RFC 9260,
// section 5.1). Policies decide about these packets by their ports and addresses. Raw sockets send
// and get them without the kernel's SCTP.
const (
	headerSize = 12 // ports, tag, checksum
	initSize   = 20 // type, flags, length, tag, window, streams out and in, number
	typeInit   = 1
	typeAck    = 2
	stateParam = 7 // without which connection tracking takes no INIT ACK
)

var checksums = crc32.MakeTable(crc32.Castagnoli)

func hasSCTP() bool {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, syscall.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	_ = syscall.Close(fd)
	return true
}

// packet is an INIT or INIT ACK. tag is the receiver's, own the sender's.
func packet(from, to uint16, tag uint32, kind byte, own uint32) []byte {
	p := make([]byte, headerSize+initSize)
	binary.BigEndian.PutUint16(p, from)
	binary.BigEndian.PutUint16(p[2:], to)
	binary.BigEndian.PutUint32(p[4:], tag)
	chunk := p[headerSize:]
	chunk[0] = kind
	binary.BigEndian.PutUint32(chunk[4:], own)
	binary.BigEndian.PutUint32(chunk[8:], 1<<16)
	binary.BigEndian.PutUint16(chunk[12:], 1)
	binary.BigEndian.PutUint16(chunk[14:], 1)
	binary.BigEndian.PutUint32(chunk[16:], 1)
	if kind == typeAck {
		p = append(p, 0, stateParam, 0, 8, 'c', 'o', 'o', 'k')
	}
	binary.BigEndian.PutUint16(p[headerSize+2:], uint16(len(p)-headerSize))
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, checksums))
	return p
}

// parse returns what packet was given.
func parse(p []byte) (from, to uint16, tag uint32, kind byte, own uint32, ok bool) {
	if len(p) < headerSize+initSize {
		return 0, 0, 0, 0, 0, false
	}
	return binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), binary.BigEndian.Uint32(p[4:]), p[headerSize],
		binary.BigEndian.Uint32(p[headerSize+4:]), true
}

// ask sends INITs until one is answered. Its errors begin as the suite wants them.
func ask(destination string, timeout time.Duration) error {
	host, text, err := net.SplitHostPort(destination)
	if err != nil {
		return fmt.Errorf("UNKNOWN: %w", err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return fmt.Errorf("UNKNOWN: %w", err)
	}
	address, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return fmt.Errorf("DNS: %w", err)
	}
	network := "ip6:132"
	if address.IP.To4() != nil {
		network = "ip4:132"
	}
	conn, err := net.DialIP(network, nil, address)
	if err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	defer conn.Close()
	own, from := rand.Uint32()|1, uint16(32768+rand.IntN(28000))
	end := time.Now().Add(timeout)
	for buffer := make([]byte, 2048); time.Now().Before(end); {
		if _, err := conn.Write(packet(from, uint16(port), 0, typeInit, own)); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("OTHER: %w", err)
		}
		again := time.Now().Add(500 * time.Millisecond)
		if again.After(end) {
			again = end
		}
		_ = conn.SetReadDeadline(again)
		for {
			n, _, err := conn.ReadFrom(buffer) // without the header of IPv4
			if err != nil {
				break // it is asked again
			}
			if source, to, tag, kind, _, ok := parse(buffer[:n]); ok && source == uint16(port) && to == from && tag == own && kind == typeAck {
				return nil
			}
		}
	}
	return errors.New("TIMEOUT")
}

// answer answers INITs to a port from now on.
func answer(text string) error {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return err
	}
	for _, network := range []string{"ip4:132", "ip6:132"} {
		conn, err := net.ListenPacket(network, "")
		if err != nil {
			return fmt.Errorf("listen to SCTP: %w", err)
		}
		go func() {
			for buffer := make([]byte, 2048); ; {
				n, sender, err := conn.ReadFrom(buffer)
				if err != nil {
					return
				}
				if from, to, _, kind, tag, ok := parse(buffer[:n]); ok && to == uint16(port) && kind == typeInit {
					_, _ = conn.WriteTo(packet(to, from, tag, typeAck, rand.Uint32()|1), sender)
				}
			}
		}()
	}
	return nil
}
