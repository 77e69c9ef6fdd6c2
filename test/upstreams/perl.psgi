# What Mojolicious, Dancer2, Catalyst, Plack and CGI.pm read of a request: FRAMEWORK=plack plackup perl.psgi
package Reader;
use strict;
use warnings;
use Encode 'decode';
use JSON::PP ();
use Plack::Request;

my $framework = $ENV{FRAMEWORK};
my $json = JSON::PP->new->utf8->allow_nonref;

sub json_id {
    my $value = eval { $json->decode($_[0]) };
    return ref $value eq 'HASH' && !ref $value->{id} ? $value->{id} : undef;
}

sub text { # of bytes, which some frameworks return
    my ($value) = @_;
    return undef unless defined $value;
    return [map { text($_) } @$value] if ref $value eq 'ARRAY';
    return ref $value || utf8::is_utf8($value) ? "$value" : decode('UTF-8', "$value");
}

sub order { # as a router does
    return $_[0] =~ m{^/orders/([^/]+)/pay/?$} ? $1 : undef;
}

sub answer {
    my (%read) = @_;
    $read{$_} = text($read{$_}) for keys %read;
    return $json->encode(\%read);
}

if ($framework eq 'mojolicious') {
    require Mojolicious::Lite;
    require Mojo::Server::PSGI;
    my $app = Mojolicious->new;
    $app->log->level('fatal');
    my $any = sub {
        my $c = shift;
        my $r = $c->req;
        my $data = $r->json;
        $c->render(data => answer(
            query => $r->query_params->every_param('id'), query_nested => $r->query_params->param('order[id]'),
            form => $r->body_params->every_param('id'), form_nested => $r->body_params->param('order[id]'),
            both => $c->stash('id') ? undef : $c->param('id'), json => ref $data eq 'HASH' && !ref $data->{id} ? $data->{id} : undef,
            cookie => $c->cookie('cart_id'), header => $r->headers->header('X-Customer'), path => $c->stash('id')), format => 'json');
    };
    $app->routes->any('/orders/:id/pay' => $any);
    $app->routes->any('/*any' => { any => '' } => $any);
    Mojo::Server::PSGI->new(app => $app)->to_psgi_app;
}
elsif ($framework eq 'dancer2') {
    package Upstream;
    require Dancer2;
    Dancer2->import;
    set(logger => 'null');
    my $any = sub {
        my $r = request();
        content_type('application/json');
        my $path = scalar route_parameters()->get('id');
        return Reader::answer(
            query => [query_parameters()->get_all('id')], query_nested => scalar query_parameters()->get('order[id]'),
            form => [body_parameters()->get_all('id')], form_nested => scalar body_parameters()->get('order[id]'), json => scalar Reader::json_id($r->body),
            cookie => cookies()->{cart_id} ? scalar cookies()->{cart_id}->value : undef, header => scalar $r->header('X-Customer'), path => $path);
    };
    any(['get', 'post'] => '/orders/:id/pay' => $any);
    any(['get', 'post'] => qr{.*} => $any);
    Upstream->to_app;
}
elsif ($framework eq 'catalyst') {
    package Upstream::Controller::Root;
    require Catalyst::Controller;
    our @ISA = ('Catalyst::Controller');
    Upstream::Controller::Root->config(namespace => '');
    eval q{
        sub any : Path { my ($self, $c, @path) = @_; $self->say_it($c, undef) }
        sub pay : Chained('/') PathPart('orders') CaptureArgs(1) { my ($self, $c, $id) = @_; $c->stash(id => $id) }
        sub end_of : Chained('pay') PathPart('pay') Args(0) { my ($self, $c) = @_; $self->say_it($c, $c->stash->{id}) }
        1 } or die $@;
    sub say_it {
        my ($self, $c, $path) = @_;
        my $r = $c->req;
        my $body = $r->body;
        my $text = $body ? do { local $/; seek $body, 0, 0; <$body> } : '';
        $c->res->content_type('application/json');
        $c->res->body(Reader::answer(
            query => $r->query_parameters->{id}, query_nested => $r->query_parameters->{'order[id]'},
            form => $r->body_parameters->{id}, form_nested => $r->body_parameters->{'order[id]'}, both => $r->parameters->{id},
            json => Reader::json_id($text), cookie => $r->cookies->{cart_id} ? scalar $r->cookies->{cart_id}->value : undef,
            header => scalar $r->header('X-Customer'), path => $path));
    }
    $INC{'Upstream/Controller/Root.pm'} = 1;
    package Upstream;
    require Catalyst;
    our @ISA = ('Catalyst');
    Catalyst->import;
    __PACKAGE__->config(name => 'Upstream', encoding => undef, disable_component_resolution_regex_fallback => 1);
    __PACKAGE__->log(Catalyst::Log->new('error', 'fatal'));
    __PACKAGE__->setup;
    __PACKAGE__->psgi_app;
}
elsif ($framework eq 'cgi') { # as a CGI script has it: parameters from STDIN and the environment
    require CGI;
    require POSIX;
    sub {
        my $env = shift;
        my $body = '';
        $env->{'psgi.input'}->read($body, $env->{CONTENT_LENGTH}) if $env->{CONTENT_LENGTH};
        pipe my $out, my $answer;
        my $child = fork;
        if (!$child) {
            %ENV = (%ENV, map { ($_ => $env->{$_}) } grep { !/^psgi|^plack/ && !ref $env->{$_} && defined $env->{$_} } keys %$env);
            $ENV{GATEWAY_INTERFACE} = 'CGI/1.1';
            open my $file, '+>', undef;
            syswrite $file, $body;
            sysseek $file, 0, 0;
            open STDIN, '<&', $file;
            my $q = CGI->new;
            my $json = ($ENV{CONTENT_TYPE} // '') =~ /json/;
            syswrite $answer, answer(
                query => $ENV{REQUEST_METHOD} eq 'POST' ? [$q->url_param('id')] : [$q->multi_param('id')],
                query_nested => $ENV{REQUEST_METHOD} eq 'POST' ? undef : scalar $q->param('order[id]'),
                form => $json ? undef : [$q->multi_param('id')], form_nested => scalar $q->param('order[id]'), json => json_id($body),
                cookie => scalar $q->cookie('cart_id'), header => $q->http('X-Customer'), path => order($q->path_info));
            POSIX::_exit(0);
        }
        close $answer;
        my $text = do { local $/; <$out> };
        waitpid $child, 0;
        return [200, ['Content-Type' => 'application/json'], [$text // '{}']];
    };
}
else {
    sub {
        my $r = Plack::Request->new(shift);
        return [200, ['Content-Type' => 'application/json'], [answer(
            query => [$r->query_parameters->get_all('id')], query_nested => $r->query_parameters->get('order[id]'),
            form => [$r->body_parameters->get_all('id')], form_nested => $r->body_parameters->get('order[id]'), both => $r->parameters->get('id'),
            json => json_id($r->content), cookie => $r->cookies->{cart_id}, header => scalar $r->header('X-Customer'), path => order($r->path_info))]];
    };
}
