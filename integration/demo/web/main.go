// Command web is the web server of the demo and test images: static, one page,
// one log line per request.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

func main() {
	listen := flag.String("listen", ":8080", "address to serve on")
	pidfile := flag.String("pidfile", "", "write the process id here")
	flag.Parse()
	name := filepath.Base(os.Args[0])
	log.SetOutput(os.Stdout)
	log.SetFlags(log.LUTC | log.Ldate | log.Ltime)
	log.SetPrefix(name + ": ")
	if err := serve(*listen, *pidfile); err != nil {
		log.Fatal(err)
	}
}

// serve answers until SIGTERM or SIGINT.
func serve(addr, pidfile string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	if pidfile != "" {
		if err := os.WriteFile(pidfile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
			return err
		}
	}
	srv := &http.Server{Handler: http.HandlerFunc(page), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	log.Printf("serving on %s", ln.Addr())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	log.Print("stopping")
	grace, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func page(w http.ResponseWriter, r *http.Request) {
	log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
	host, _ := os.Hostname()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "Hello from Coracle, in pod %s. It is %s.\n", host, time.Now().UTC().Format(time.TimeOnly))
}
