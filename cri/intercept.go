package cri

import (
	"context"
	"log/slog"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// observer wraps every call: it turns a panic into Internal, errors into
// status codes, writes the one log line a call gets, and says how long it took and when
// work was done.
type observer struct {
	log    *slog.Logger
	worked func()
	called func(method string, code codes.Code, took time.Duration)
}

func (o observer) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, o.panicked(info.FullMethod, p)
		}
		o.done(ctx, info.FullMethod, began, err)
	}()
	resp, err = next(ctx, req)
	return resp, toStatus(err)
}

func (o observer) streaming(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			err = o.panicked(info.FullMethod, p)
		}
		o.done(ss.Context(), info.FullMethod, began, err)
	}()
	return toStatus(next(srv, ss))
}

// panicked logs the stack; the client only learns that it was our fault.
func (o observer) panicked(method string, p any) error {
	o.log.Error("panic in a call", "method", path.Base(method), "panic", p, "stack", string(debug.Stack()))
	return status.Errorf(codes.Internal, "%s: internal error: %v", path.Base(method), p)
}

func (o observer) done(ctx context.Context, method string, began time.Time, err error) {
	method = path.Base(method)
	took := time.Since(began)
	if o.called != nil {
		o.called(method, status.Code(err), took)
	}
	if o.worked != nil && !question(method) {
		o.worked()
	}
	level := levelOf(status.Code(err))
	if !o.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("method", method), slog.Duration("took", took)}
	if err != nil {
		s, _ := status.FromError(err)
		attrs = append(attrs, slog.String("code", s.Code().String()), slog.String("err", s.Message()))
	}
	o.log.LogAttrs(ctx, level, "call", attrs...)
}

// question says whether a method only reads memory, so that it leaves no garbage
// worth collecting. The kubelet asks several a second.
func question(method string) bool {
	return strings.HasPrefix(method, "List") || strings.HasPrefix(method, "Stream") || strings.HasSuffix(method, "Status") ||
		strings.HasSuffix(method, "Stats") || method == "Version" || method == "RuntimeConfig" || method == "ImageFsInfo"
}

// levelOf says how loud a result is: what a client does wrong, or asks in vain, is
// its own affair; what we could not do is the operator's.
func levelOf(c codes.Code) slog.Level {
	switch c {
	case codes.OK:
		return slog.LevelDebug
	case codes.NotFound, codes.Canceled, codes.Unimplemented, codes.AlreadyExists,
		codes.InvalidArgument, codes.FailedPrecondition, codes.DeadlineExceeded:
		return slog.LevelInfo
	case codes.Internal, codes.DataLoss:
		return slog.LevelError
	default:
		return slog.LevelWarn
	}
}
